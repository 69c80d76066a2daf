import { expect, test } from 'vitest';
import type { Lease, WorkspaceRow } from '../store/rows.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import { createLogger } from '../telemetry/log.ts';
import { Ownership } from './ownership.ts';

const workspace = { id: 'w' } as WorkspaceRow;
const lease: Lease = { workspace: 'w', incarnation: 1n, epoch: 1n, token: 't' };

/** The few queries that ownership makes; `beats` is whether the store answers heartbeats. */
function world(options: { idleMs?: number } = {}) {
  const seen = { released: 0, beats: true as boolean | 'hang', now: 0 };
  const store = {
    heartbeat: async () => {
      if (seen.beats === 'hang') await new Promise(() => undefined);
      if (!seen.beats) throw new Error('away');
      return { incarnation: 1n };
    },
    acquire: async () => ({ lease }),
    head: async () => ({ head: 3n, files: 0n, bytes: 0n }),
    release: async () => void (seen.released += 1),
    releaseAll: async () => undefined,
  } as unknown as WorkspaceStore;
  const stop = new AbortController();
  const ownership = new Ownership({
    store,
    replica: 'r',
    address: 'a',
    log: createLogger('error', {}, () => undefined),
    now: () => seen.now,
    heartbeatMs: 1,
    ...options,
  });
  const ready = Promise.withResolvers<void>();
  const running = ownership.run(ready.resolve, stop.signal);
  return { seen, ownership, ready: ready.promise, end: async () => (stop.abort(), await running) };
}
async function own(ownership: Ownership) {
  const owned = await ownership.acquire(workspace);
  if ('redirect' in owned) throw new Error('redirected');
  return owned;
}

test('TL22: a workspace that nobody used for a while is given back, one in use is not', async () => {
  const { seen, ownership, ready, end } = world({ idleMs: 1_000 });
  await ready;
  const owned = await own(ownership);
  const gate = Promise.withResolvers<void>();
  const using = ownership.using(owned, () => gate.promise);
  seen.now = 3_000;
  await expect.poll(() => ownership.count).toBe(1);
  gate.resolve();
  await using;
  seen.now = 6_000;
  await expect.poll(() => seen.released).toBe(1);
  expect(owned.signal.aborted).toBe(true);
  expect(ownership.count).toBe(0);
  await end();
});

test('an owner whose heartbeats do not arrive stops itself before anybody may take over', async () => {
  const { seen, ownership, ready, end } = world({ idleMs: 1_000_000 });
  await ready;
  const owned = await own(ownership);
  seen.beats = false;
  seen.now = 7_900;
  await new Promise((resolve) => setImmediate(resolve));
  expect(owned.signal.aborted).toBe(false);
  seen.now = 8_100;
  await expect.poll(() => owned.signal.aborted).toBe(true);
  await end();
});

test('an owner whose heartbeat hangs stops itself all the same', async () => {
  const { seen, ownership, ready, end } = world({ idleMs: 1_000_000 });
  await ready;
  const owned = await own(ownership);
  seen.beats = 'hang';
  seen.now = 8_100;
  await expect.poll(() => owned.signal.aborted).toBe(true);
  await end();
});

test('a workspace that is asked for twice at once has one owner here, and one queue', async () => {
  const { ownership, ready, end } = world();
  await ready;
  const [first, second] = await Promise.all([own(ownership), own(ownership)]);
  expect(first).toBe(second);
  expect(first.signal.aborted).toBe(false);
  await end();
});

test('commands of one workspace run one at a time, and one that fails does not stop the next', async () => {
  const { ownership, ready, end } = world();
  await ready;
  const owned = await own(ownership);
  const order: string[] = [];
  const first = owned.exclusive(async () => {
    await new Promise((resolve) => setImmediate(resolve));
    order.push('first');
    throw new Error('failed');
  });
  const second = owned.exclusive(async () => void order.push('second'));
  await expect(first).rejects.toThrow('failed');
  await second;
  expect(order).toEqual(['first', 'second']);
  await end();
});
