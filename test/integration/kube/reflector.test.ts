/** K8: whatever happens to the watch, the cache converges on what the API server has. */
import { afterEach, describe, expect, test } from 'vitest';
import { startReflector, type Change, type Reflector } from '../../../operator/kube/reflector.ts';
import { CONFIG_MAPS, useApiServer, type ConfigMap } from './world.ts';

const world = useApiServer();
let stop = new AbortController();
afterEach(() => {
  stop.abort();
  stop = new AbortController();
  Object.assign(world.proxy.faults, { cutAfterBytes: undefined, silent: false, corrupt: false, delayMs: undefined });
});

async function reflect(
  changes: Change<ConfigMap>[] = [],
  options: { idleTimeoutMs?: number; pageSize?: number; watchSeconds?: number } = {},
): Promise<Reflector<ConfigMap>> {
  const reflector = startReflector(
    world.throughProxy,
    CONFIG_MAPS,
    { namespace: world.namespace, onChange: (c) => changes.push(c), random: () => 0.1, ...options },
    stop.signal,
  );
  await reflector.whenSynced(AbortSignal.timeout(20_000));
  return reflector;
}
const valueOf = (r: Reflector<ConfigMap>, name: string) => r.get({ namespace: world.namespace, name })?.data?.['value'];
const converges = (r: Reflector<ConfigMap>, name: string, value: string | undefined) =>
  expect.poll(() => valueOf(r, name), { timeout: 30_000, interval: 50 }).toBe(value);

describe('K8: the cache converges', () => {
  test('on adds, changes and deletions as they come', async () => {
    const changes: Change<ConfigMap>[] = [];
    const r = await reflect(changes);
    await world.put('plain', '1');
    await converges(r, 'plain', '1');
    await world.put('plain', '2');
    await converges(r, 'plain', '2');
    await world.remove('plain');
    await converges(r, 'plain', undefined);
    expect(changes.filter((c) => c.object.metadata.name === 'plain').map((c) => c.type)).toEqual([
      'added',
      'modified',
      'deleted',
    ]);
  });

  test('a list of many pages is one list', async () => {
    for (let i = 0; i < 7; i += 1) await world.put(`page-${i}`, String(i));
    const r = await reflect([], { pageSize: 2 });
    expect(r.list().filter((o) => o.metadata.name.startsWith('page-'))).toHaveLength(7);
  });

  test('after every connection was dropped, deletions meanwhile included', async () => {
    await world.put('dropped', '1');
    await world.put('deleted-meanwhile', '1');
    const changes: Change<ConfigMap>[] = [];
    const r = await reflect(changes);
    world.proxy.faults.silent = true;
    await world.put('dropped', '2');
    await world.remove('deleted-meanwhile');
    world.proxy.dropAll();
    world.proxy.faults.silent = false;
    await converges(r, 'dropped', '2');
    await converges(r, 'deleted-meanwhile', undefined);
    expect(changes.some((c) => c.type === 'deleted' && c.object.metadata.name === 'deleted-meanwhile')).toBe(true);
  });

  test.for([[700], [1_900], [2_600], [3_100], [5_000]])(
    'when each connection is cut after %i bytes, be it in the middle of an event',
    async ([bytes]) => {
      const r = await reflect();
      world.proxy.faults.cutAfterBytes = bytes;
      world.proxy.dropAll();
      for (let i = 0; i < 5; i += 1) await world.put('cut', `${bytes}-${i}`);
      world.proxy.faults.cutAfterBytes = undefined;
      await converges(r, 'cut', `${bytes}-4`);
    },
  );

  test('when garbage comes', async () => {
    const r = await reflect();
    world.proxy.faults.corrupt = true;
    for (let i = 0; i < 5; i += 1) await world.put('garbage', `garbage-${i}`);
    world.proxy.faults.corrupt = false;
    await converges(r, 'garbage', 'garbage-4');
  });

  test('when the watch goes quiet without a word: the watchdog cuts it, and staleness is known', async () => {
    const r = await reflect([], { idleTimeoutMs: 1_500 });
    world.proxy.faults.silent = true;
    await world.put('quiet', 'after silence');
    await expect.poll(() => r.staleForMs(), { timeout: 10_000 }).toBeGreaterThan(500);
    world.proxy.faults.silent = false;
    await converges(r, 'quiet', 'after silence');
    expect(r.staleForMs()).toBeLessThan(5_000);
  });

  test('when the server ends the watch by its timeout', async () => {
    const r = await reflect([], { watchSeconds: 1 });
    const before = world.proxy.connections();
    for (let i = 0; i < 3; i += 1) {
      await world.put('timeout', `round ${i}`);
      await converges(r, 'timeout', `round ${i}`);
      const at = r.staleForMs();
      await expect.poll(() => r.staleForMs() < at || r.staleForMs() > 1_000, { timeout: 5_000 }).toBe(true);
    }
    expect(world.proxy.connections()).toBeGreaterThanOrEqual(before);
  });

  test('when everything is slow', async () => {
    world.proxy.faults.delayMs = 200;
    const r = await reflect();
    await world.put('slow', 'arrives');
    await converges(r, 'slow', 'arrives');
  });
});

test('a version that is too old is a 410, by its code', async () => {
  const watching = async () => {
    for await (const event of world.client.watch(
      CONFIG_MAPS,
      { namespace: world.namespace, resourceVersion: '1', timeoutSeconds: 2 },
      AbortSignal.timeout(10_000),
    )) {
      if (event.type === 'ERROR') return event.object.code;
    }
    return undefined;
  };
  // Whether 1 is compacted yet depends on the server's age; both answers are well-formed.
  expect([410, undefined]).toContain(await watching().catch((error: { status?: number }) => error.status));
});
