/** A resource that CEL lets through and that still can't work says so where `kubectl describe` looks, and heals by itself. */
import { describe, expect, test } from 'vitest';
import { SMALL, useWorld } from './world.ts';

const world = useWorld('faults');

describe('a workspace that cannot work yet', () => {
  test('its class is missing: a condition names it, the turn waits, and both go on once it is there', async () => {
    const name = `late-${world.namespace}`;
    await world.apply(
      world.workspace('late', { class: name }),
      world.turn('late', { workspace: 'late', command: 'true' }),
    );
    const condition = await world.condition('workspace', 'late', 'Ready', { status: 'False' });
    expect(condition.message).toContain(name);
    await expect.poll(async () => (await world.get('turn', 'late')).status?.phase, { timeout: 15_000 }).toBe('Pending');
    await world.apply({ apiVersion: 'lathe.dev/v1alpha1', kind: 'WorkspaceClass', metadata: { name }, spec: SMALL });
    try {
      expect((await world.finished('late')).status?.phase).toBe('Completed');
    } finally {
      await world.kubectl.run(['delete', 'workspaceclass', name, '--wait=false']);
    }
  });

  test('its image is not allowed by the class: the condition names the image and what is allowed', async () => {
    await world.apply(world.workspace('image', { environment: { image: 'example.com/evil:1' } }));
    const condition = await world.condition('workspace', 'image', 'Ready', { status: 'False' });
    expect(condition.message).toContain('example.com/evil:1');
  });

  test('a quantity is absurd: the condition names the field and the value', async () => {
    await world.apply(world.workspace('absurd', { environment: { resources: { memory: '900Ti' } } }));
    const condition = await world.condition('workspace', 'absurd', 'Ready', { status: 'False' });
    expect(condition.message).toContain('900Ti');
  });

  test('a turn whose workspace does not exist waits and says so', async () => {
    await world.apply(world.turn('orphan', { workspace: 'nowhere', command: 'true' }));
    await expect
      .poll(async () => (await world.get('turn', 'orphan')).status?.message ?? '', { timeout: 30_000 })
      .toContain('nowhere');
    await world.apply(world.workspace('nowhere'));
    expect((await world.finished('orphan')).status?.phase).toBe('Completed');
  });
});

describe('a pod that cannot start', () => {
  test("its image cannot be pulled: the Sandbox says ImagePullFailed with the cluster's own message", async () => {
    const name = `pull-${world.namespace}`;
    await world.apply(
      {
        apiVersion: 'lathe.dev/v1alpha1',
        kind: 'WorkspaceClass',
        metadata: { name },
        spec: { ...SMALL, images: { default: 'localhost:1/no-such:1', allowed: ['localhost:1/*'] } },
      },
      world.workspace('pull', { class: name }),
      world.turn('pull', { workspace: 'pull', command: 'true' }),
    );
    try {
      await expect
        .poll(async () => (await world.get('sandbox', 'pull').catch(() => undefined))?.status?.conditions ?? [], {
          timeout: 60_000,
        })
        .toContainEqual(
          expect.objectContaining({
            status: 'False',
            reason: 'ImagePullFailed',
            message: expect.stringContaining('no-such'),
          }),
        );
      expect((await world.get('turn', 'pull')).status?.phase).not.toBe('Failed');
    } finally {
      await world.kubectl.run(['-n', world.namespace, 'delete', 'workspace', 'pull', '--wait=false']);
      await world.kubectl.run(['delete', 'workspaceclass', name, '--wait=false']);
    }
  });

  test("a ResourceQuota refuses it: the condition has the quota's own numbers, and it starts once there is room", async () => {
    await world.apply({
      apiVersion: 'v1',
      kind: 'ResourceQuota',
      metadata: { name: 'tight', namespace: world.namespace },
      spec: { hard: { pods: '0' } },
    });
    await world.apply(world.workspace('quota'), world.turn('quota', { workspace: 'quota', command: 'true' }));
    try {
      await expect
        .poll(async () => (await world.get('sandbox', 'quota').catch(() => undefined))?.status?.conditions ?? [], {
          timeout: 60_000,
        })
        .toContainEqual(
          expect.objectContaining({
            status: 'False',
            reason: 'QuotaExceeded',
            message: expect.stringContaining('tight'),
          }),
        );
    } finally {
      await world.kubectl.run(['-n', world.namespace, 'delete', 'resourcequota', 'tight']);
    }
    expect((await world.finished('quota', 120_000)).status?.phase).toBe('Completed');
  });

  test('K4: a pod and a claim of the same name that are not ours are left alone, and the Sandbox says so', async () => {
    const name = 'n'.repeat(50);
    await world.apply({
      apiVersion: 'v1',
      kind: 'PersistentVolumeClaim',
      metadata: { name, namespace: world.namespace, labels: { owner: 'somebody-else' } },
      spec: { accessModes: ['ReadWriteOnce'], resources: { requests: { storage: '1Mi' } } },
    });
    const before = await world.get('pvc', name);
    await world.apply(
      world.workspace(name, { volume: { mode: 'Persistent' } }),
      world.turn('foreign', { workspace: name, command: 'true' }),
    );
    await expect
      .poll(async () => (await world.get('sandbox', name).catch(() => undefined))?.status?.conditions ?? [], {
        timeout: 60_000,
      })
      .toContainEqual(expect.objectContaining({ status: 'False', message: expect.stringContaining(name) }));
    const after = await world.get('pvc', name);
    expect(after.metadata.uid).toBe(before.metadata.uid);
    expect(after.metadata.labels).toEqual(before.metadata.labels);
  });

  test('K4: a workspace of 50 characters and a turn of 100 work; longer names are refused at once', async () => {
    const workspace = 'w'.repeat(50);
    const turn = 't'.repeat(100);
    await world.apply(world.workspace(workspace), world.turn(turn, { workspace, command: 'true' }));
    expect((await world.finished(turn)).status?.phase).toBe('Completed');
    await expect(world.apply(world.workspace('w'.repeat(51)))).rejects.toThrow(/50/);
    await expect(world.apply(world.turn('t'.repeat(101), { workspace, command: 'true' }))).rejects.toThrow(/100/);
  });
});
