/** Any one process ends at any moment: the result arrives once, or it is unknown and says so. Real processes, real Postgres. */
import { describe, expect, test } from 'vitest';
import { EntryKind, type Entry } from '../../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { ExecutionNotDispatched } from '../../../operator/store/database.ts';
import { newId } from '../../../operator/store/ids.ts';
import { useSandboxes } from './world.ts';

const world = useSandboxes();
const COMMAND = 'echo ran >> runs; echo begun; sleep 2; echo ended';

async function begun(owned: Awaited<ReturnType<typeof world.own>>, replica = world.replica) {
  const seen = Promise.withResolvers<void>();
  const id = newId();
  const result = world.run(owned, COMMAND, { id, replica, onOutput: () => seen.resolve() });
  result.catch(() => undefined);
  await seen.promise;
  return { id, result };
}
const sandboxOf = (workspace: string) => {
  const sandbox = world.provider.sandboxes.get(workspace);
  if (sandbox === undefined) throw new Error('no sandbox');
  return sandbox;
};

describe('killed in the middle of a command', () => {
  test('the broker: the command goes on and its result arrives once', async () => {
    const workspace = await world.workspace();
    const owned = await world.own(workspace);
    const { result } = await begun(owned);
    sandboxOf(workspace.id).broker.kill('SIGKILL');
    world.provider.restart(workspace.id, 'broker');
    expect(await result).toMatchObject({ state: 'done', exitCode: 0, head: 'begun\nended\n', files: { created: 1 } });
    expect((await world.run(owned, 'cat runs')).head).toBe('ran\n');
  });

  test('the guest: the outcome is unknown, what it did is not kept, and the next command runs', async () => {
    const workspace = await world.workspace();
    const owned = await world.own(workspace);
    const { result } = await begun(owned);
    sandboxOf(workspace.id).guest.kill('SIGKILL');
    world.provider.restart(workspace.id, 'guest');
    expect(await result).toMatchObject({ state: 'unknown', reason: 'SandboxLost', files: { created: 0 } });
    expect(await world.run(owned, 'ls; echo alive')).toMatchObject({ state: 'done', head: 'alive\n' });
  });

  test('the turn controller: another one adopts it, the result is committed once, and the first can commit nothing', async () => {
    const workspace = await world.workspace();
    const first = await world.own(workspace);
    const { id } = await begun(first);
    // What SIGKILL leaves of a replica: a lease, a heartbeat that grows old, and a broker whose stream broke.
    const second = await world.startReplica();
    const before = world.replica;
    await world.store.database.query(
      'age-replica',
      "UPDATE replica SET heartbeat_at = now() - interval '1 minute' WHERE id = $1",
      [before.ownership.replica],
    );
    world.replica = second;
    before.ownership.lost(first);
    const owned = await world.own(workspace, second);
    sandboxOf(workspace.id).broker.kill('SIGKILL');
    world.provider.restart(workspace.id, 'broker');
    const adopted = await second.executor.adopt(owned, id, () => undefined, AbortSignal.timeout(30_000));
    expect(adopted).toMatchObject({ state: 'done', exitCode: 0, head: 'begun\nended\n', files: { created: 1 } });
    await expect(
      world.store.commit(first.lease, { changes: [], events: [{ type: 'late', v: 1, payload: {} }] }),
    ).rejects.toThrow(/not held/);
    expect((await world.run(owned, 'cat runs', { replica: second })).head).toBe('ran\n');
    const done = (await world.store.readEvents(workspace.id, {})).filter(
      (e) => e.type === 'execution.done' && e.execution === id,
    );
    expect(done).toHaveLength(1);
  });

  test('a command whose sandbox was replaced is unknown, and is not run again', async () => {
    const workspace = await world.workspace();
    const owned = await world.own(workspace);
    const { result } = await begun(owned);
    const sandbox = sandboxOf(workspace.id);
    sandbox.broker.kill('SIGKILL');
    sandbox.guest.kill('SIGKILL');
    await world.provider.replace(workspace);
    expect(await result).toMatchObject({ state: 'unknown', reason: 'SandboxLost' });
    expect(await world.run(owned, 'ls; echo alive')).toMatchObject({ state: 'done', head: 'alive\n' });
  });
});

test('a guest that never reports is not waited for: the outcome is unknown, and the next command runs in another', async () => {
  const before = world.replica;
  world.replica = await world.startReplica({ reportMs: 1_000 });
  try {
    const workspace = await world.workspace();
    const owned = await world.own(workspace);
    await world.run(owned, 'echo kept > kept');
    const result = await world.run(owned, 'echo lost > lost; kill -STOP $PPID; sleep 100', { timeoutMs: 200 });
    expect(result).toMatchObject({ state: 'unknown', reason: 'SandboxLost', files: { created: 0 } });
    sandboxOf(workspace.id).guest.kill('SIGKILL');
    world.provider.restart(workspace.id, 'guest');
    expect((await world.run(owned, 'ls')).head).toBe('kept\n');
  } finally {
    world.replica = before;
  }
});

test('a broker that dials a replica which does not own the workspace is sent to the one that does', async () => {
  const workspace = await world.workspace();
  const owned = await world.own(workspace);
  await world.run(owned, 'echo kept > kept');
  const other = await world.startReplica();
  const owner = world.replica;
  world.replica = other;
  sandboxOf(workspace.id).broker.kill('SIGKILL');
  // It starts with the other one's address.
  world.provider.restart(workspace.id, 'broker');
  expect((await world.run(owned, 'cat kept', { replica: owner })).head).toBe('kept\n');
  world.replica = owner;
});

describe('S2: a sandbox reports only what it was sent, once', () => {
  test('a result for another execution, or a second one, changes nothing', async () => {
    const workspace = await world.workspace();
    const owned = await world.own(workspace);
    const done = await world.run(owned, 'true');
    const row = await world.store.getExecution(done.execution);
    const forged = (id: string, boot: string) =>
      world.store.commit(owned.lease, {
        execution: { id, sandbox: row?.sandbox ?? '', boot, state: 'done', result: {} },
        changes: [],
        events: [{ type: 'forged', v: 1, payload: {} }],
      });
    await expect(forged(done.execution, row?.boot ?? '')).rejects.toThrow(ExecutionNotDispatched);
    await expect(forged(newId(), row?.boot ?? '')).rejects.toThrow(ExecutionNotDispatched);
    const meeting = world.replica.meeting(workspace.id);
    const before = await world.store.readEvents(workspace.id, {});
    const { signal } = new AbortController();
    await meeting.deliver({ $case: 'lost', value: { execution: done.execution, reason: 'forged' } }, signal);
    await meeting.deliver(
      {
        $case: 'offer',
        value: { execution: newId(), baseVersion: 0n, changes: [], skipped: [], last: true, files: 0 },
      },
      signal,
    );
    expect(await world.run(owned, 'true')).toMatchObject({ state: 'done' });
    const after = await world.store.readEvents(workspace.id, {});
    expect(after.slice(before.length).map((e) => e.type)).toEqual(['execution.dispatched', 'execution.done']);
  });
});

test('F11: a forged diff that names a parent is refused, and the rest of it is committed', async () => {
  const workspace = await world.workspace();
  const owned = await world.own(workspace);
  const meeting = world.replica.meeting(workspace.id);
  const deliver = meeting.deliver.bind(meeting);
  const forged: Entry = {
    path: '/../../etc/x',
    kind: EntryKind.ENTRY_KIND_REGULAR,
    executable: false,
    size: 1n,
    sha256: Buffer.alloc(32),
    target: '',
    inline: Buffer.from('x'),
  };
  // What a hostile guest could send in place of its own offer.
  meeting.deliver = (news, signal) =>
    deliver(
      news.$case === 'offer' ? { ...news, value: { ...news.value, changes: [forged, ...news.value.changes] } } : news,
      signal,
    );
  const result = await world.run(owned, 'echo good > good');
  meeting.deliver = deliver;
  expect(result.refused).toMatchObject([{ reason: 'PathRefused' }]);
  expect(result.files.paths).toEqual(['/good']);
});
