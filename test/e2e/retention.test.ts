/** What outlives a Workspace, and how one comes back to it. */
import { expect, test } from 'vitest';
import { useWorld } from './world.ts';

const world = useWorld('retention');

test('a Workspace that was deleted is gone on with by adoptFrom: files, history, and commands in a new sandbox', async () => {
  await world.apply(world.workspace('before'), world.turn('first', { workspace: 'before', command: 'echo kept > a' }));
  await world.finished('first');
  await expect.poll(async () => (await world.get('workspace', 'before')).status?.['id']).toBeTruthy();
  const id = String((await world.get('workspace', 'before')).status?.['id']);
  await world.kubectl.run(['-n', world.namespace, 'delete', 'workspace', 'before', '--timeout=60s']);
  await expect
    .poll(
      async () => {
        await world.apply(
          world.workspace('after', { adoptFrom: id }),
          world.turn('second', { workspace: 'after', command: 'cat a; echo more >> a' }),
        );
        return (await world.get('workspace', 'after')).status?.['id'];
      },
      { timeout: 60_000, interval: 1_000 },
    )
    .toBe(id);
  expect((await world.finished('second')).status).toMatchObject({ phase: 'Completed', files: { changed: 1 } });
});

test('K9: a namespace that is made anew does not hand out what another had: it says so and waits', async () => {
  const namespace = `${world.namespace}-again`;
  const workspace = (spec: object = {}) => ({
    apiVersion: 'lathe.dev/v1alpha1',
    kind: 'Workspace',
    metadata: { name: 'w', namespace },
    spec: { volume: { mode: 'Ephemeral' }, ...spec },
  });
  const status = async () => (await world.get('workspace', 'w', namespace)).status;
  const reason = async () => (await status())?.conditions?.find(({ type }) => type === 'Ready')?.reason;
  await world.kubectl.run(['create', 'namespace', namespace]);
  await world.apply(workspace());
  await expect.poll(reason, { timeout: 30_000 }).toBe('Ready');
  const id = String((await status())?.['id']);
  await world.kubectl.run(['delete', 'namespace', namespace, '--timeout=90s']);
  await world.kubectl.run(['create', 'namespace', namespace]);
  try {
    await world.apply(workspace());
    await expect.poll(reason, { timeout: 30_000 }).toBe('OrphanFound');
    expect((await status())?.conditions?.find(({ type }) => type === 'Ready')?.message).toContain(id);
    await world.kubectl.run(['-n', namespace, 'delete', 'workspace', 'w', '--timeout=60s']);
    await world.apply(workspace({ adoptFrom: id }));
    await expect.poll(async () => (await status())?.['id'], { timeout: 60_000 }).toBe(id);
  } finally {
    await world.kubectl.run(['delete', 'namespace', namespace, '--wait=false']);
  }
});

test('K3: a WorkspaceQuota holds what a command makes; it shows what is used, and once there is room the next command keeps it', async () => {
  const quota = (storedBytes: string) => ({
    apiVersion: 'lathe.dev/v1alpha1',
    kind: 'WorkspaceQuota',
    metadata: { name: 'files', namespace: world.namespace },
    spec: { hard: { storedBytes } },
  });
  await world.apply(quota('100k'), world.workspace('quota'));
  await expect
    .poll(async () => (await world.get('workspacequota', 'files')).status?.['hard'])
    .toEqual({ storedBytes: '100k' });
  await world.apply(
    world.turn('too-large', { workspace: 'quota', command: 'head -c 200k /dev/zero > big; echo said' }),
  );
  expect((await world.finished('too-large')).status).toMatchObject({
    phase: 'Completed',
    exitCode: 0,
    files: { created: 0 },
  });
  await world.apply(quota('1M'));
  await expect
    .poll(async () => (await world.get('workspacequota', 'files')).status?.['hard'])
    .toEqual({ storedBytes: '1M' });
  await world.apply(
    world.turn('fits', { workspace: 'quota', command: 'test ! -e big && head -c 200k /dev/zero > big' }),
  );
  expect((await world.finished('fits')).status).toMatchObject({ phase: 'Completed', files: { created: 1 } });
});
