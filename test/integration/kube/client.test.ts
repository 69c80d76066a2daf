import { describe, expect, test } from 'vitest';
import { runElected } from '../../../operator/kube/election.ts';
import { isAlreadyExists, isConflict, isInvalid, isNotFound } from '../../../operator/kube/errors.ts';
import { CONFIG_MAPS, useApiServer } from './world.ts';

const world = useApiServer();
const object = (name: string, value = '1') => ({
  apiVersion: 'v1',
  kind: 'ConfigMap',
  metadata: { name, namespace: world.namespace },
  data: { value },
});
const refusal = (work: Promise<unknown>) =>
  work.then(
    () => undefined,
    (error: unknown) => error,
  );

describe('errors are told apart by status and reason', () => {
  test('not found, exists already, conflict, invalid', async () => {
    const ref = { namespace: world.namespace, name: 'typed' };
    expect(isNotFound(await refusal(world.client.get(CONFIG_MAPS, ref)))).toBe(true);
    const made = await world.client.create(CONFIG_MAPS, object('typed'));
    expect(isAlreadyExists(await refusal(world.client.create(CONFIG_MAPS, object('typed'))))).toBe(true);
    expect(isConflict(await refusal(world.client.delete(CONFIG_MAPS, ref, { uid: 'another' })))).toBe(true);
    await world.client.mergePatch(CONFIG_MAPS, ref, { data: { value: '2' } });
    expect(
      isConflict(
        await refusal(
          world.client.mergePatch(CONFIG_MAPS, ref, {
            metadata: { resourceVersion: made.metadata.resourceVersion },
            data: { value: '3' },
          }),
        ),
      ),
    ).toBe(true);
    expect(isInvalid(await refusal(world.client.create(CONFIG_MAPS, object('NOT_A_NAME'))))).toBe(true);
  });

  test('a dry run makes nothing', async () => {
    await world.client.create(CONFIG_MAPS, object('dry'), { dryRun: true });
    expect(isNotFound(await refusal(world.client.get(CONFIG_MAPS, { namespace: world.namespace, name: 'dry' })))).toBe(
      true,
    );
  });

  test('an aborted call rejects with the reason it was aborted for', async () => {
    await expect(
      world.client.list(CONFIG_MAPS, { namespace: world.namespace }, AbortSignal.abort(new Error('stopped'))),
    ).rejects.toThrow('stopped');
  });
});

describe('K6: one leader at a time', () => {
  const times = { leaseMs: 2_000, renewMs: 1_200, retryMs: 200 };
  const elect = (name: string, identity: string, log: string[], signal: AbortSignal) =>
    runElected(
      { client: world.client, namespace: world.namespace, name, identity, ...times },
      async (leading) => {
        log.push(`${identity} leads`);
        await new Promise<void>((resolve) => leading.addEventListener('abort', () => resolve(), { once: true }));
        log.push(`${identity} stops`);
      },
      signal,
    );

  test('a clean stop releases the lease, and the next one leads at once', async () => {
    const log: string[] = [];
    const [a, b] = [new AbortController(), new AbortController()];
    const first = elect('clean', 'a', log, a.signal);
    await expect.poll(() => log).toEqual(['a leads']);
    const second = elect('clean', 'b', log, b.signal);
    a.abort();
    await first;
    await expect.poll(() => log, { timeout: 1_500 }).toEqual(['a leads', 'a stops', 'b leads']);
    b.abort();
    await second;
  });

  test('a leader that is cut off stops its work before another one may begin', async () => {
    const log: string[] = [];
    const [a, b] = [new AbortController(), new AbortController()];
    const first = runElected(
      { client: world.throughProxy, namespace: world.namespace, name: 'cut', identity: 'a', ...times },
      async (leading) => {
        log.push('a leads');
        await new Promise<void>((resolve) => leading.addEventListener('abort', () => resolve(), { once: true }));
        log.push('a stops');
      },
      a.signal,
    );
    await expect.poll(() => log, { timeout: 5_000 }).toEqual(['a leads']);
    const second = elect('cut', 'b', log, b.signal);
    world.proxy.faults.silent = true;
    await expect.poll(() => log, { timeout: 15_000 }).toContain('b leads');
    expect(log.indexOf('a stops')).toBeLessThan(log.indexOf('b leads'));
    expect(log).toContain('a stops');
    world.proxy.faults.silent = false;
    a.abort();
    b.abort();
    await Promise.all([first, second]);
  });
});
