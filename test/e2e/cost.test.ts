/** What one turn costs the API server, counted from outside in its audit log. */
import { readFile } from 'node:fs/promises';
import { expect, test } from 'vitest';
import { useWorld } from './world.ts';

const world = useWorld('cost');
type Audited = Readonly<{
  verb: string;
  user: { username: string };
  objectRef?: { resource?: string; subresource?: string; name?: string; namespace?: string };
}>;

async function writes(): Promise<readonly string[]> {
  const path = world.installation.cluster.auditLog;
  if (path === undefined) throw new Error('this cluster keeps no audit log');
  const lines = (await readFile(path, 'utf8')).split('\n').filter((line) => line.includes(world.namespace));
  return lines
    .map((line) => JSON.parse(line) as Audited)
    .filter((a) => a.user.username === `system:serviceaccount:${world.installation.namespace}:lathe-operator`)
    .filter((a) => a.objectRef?.namespace === world.namespace && !['get', 'list', 'watch'].includes(a.verb))
    .map(
      (a) => `${a.verb} ${a.objectRef?.resource ?? ''}${a.objectRef?.subresource ? `/${a.objectRef.subresource}` : ''}`,
    );
}

/** By kind, from the operator's own metrics. */
async function reconciles(): Promise<Readonly<Record<string, number>>> {
  const { namespace } = world.installation;
  const pods = await world.list('pods', 'app.kubernetes.io/component=operator', namespace);
  const text = await world.kubectl.run([
    'get',
    '--raw',
    `/api/v1/namespaces/${namespace}/pods/${pods[0]?.metadata.name}:8080/proxy/metrics`,
  ]);
  return Object.fromEntries(
    [...text.matchAll(/^lathe_reconciles_total\{kind="(\w+)"\} (\d+)$/gm)].map(([, kind, n]) => [
      kind ?? '',
      Number(n),
    ]),
  );
}

test.runIf(world.installation.cluster.auditLog !== undefined)(
  'K5: a turn in a warm sandbox costs at most 6 status writes of its own, and rest costs none',
  async () => {
    await world.apply(world.workspace('cost'), world.turn('warm-up', { workspace: 'cost', command: 'true' }));
    await world.finished('warm-up');
    const before = await settled();
    const reconciledBefore = await reconciles();
    await world.apply(world.turn('counted', { workspace: 'cost', command: 'true' }));
    await world.finished('counted');
    const after = await settled();
    const reconciledAfter = await reconciles();
    const passes = (reconciledAfter['Turn'] ?? 0) - (reconciledBefore['Turn'] ?? 0);
    const cost = after.slice(before.length);
    process.stdout.write(`one warm turn: ${passes} reconciles of it; writes: ${cost.join(', ')}\n`);
    expect(passes).toBeLessThanOrEqual(8);
    expect(cost.filter((w) => w === 'patch turns/status').length).toBeLessThanOrEqual(6);
    expect(cost.filter((w) => w.includes('pods'))).toEqual([]);
  },
);

/** The list of writes once it has stopped growing for 3 s. */
async function settled(): Promise<readonly string[]> {
  let last: readonly string[] = [];
  let since = Date.now();
  await expect
    .poll(
      async () => {
        const now = await writes();
        if (now.length !== last.length) since = Date.now();
        last = now;
        return Date.now() - since;
      },
      { timeout: 60_000, interval: 500 },
    )
    .toBeGreaterThan(3_000);
  return last;
}
