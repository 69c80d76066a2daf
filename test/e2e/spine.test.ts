/** The whole chain once: what a person applies, what runs, what comes back. */
import { describe, expect, test } from 'vitest';
import { conditionOf, SMALL, useWorld } from './world.ts';

const world = useWorld('spine');

describe('a workspace and a command', () => {
  test('three lines are a workspace, and a command turn in it ends with its exit code and what it changed', async () => {
    await world.apply(
      {
        apiVersion: 'lathe.dev/v1alpha1',
        kind: 'Workspace',
        metadata: { name: 'plain', namespace: world.namespace },
        spec: {},
      },
      world.turn('writes', { workspace: 'plain', command: 'mkdir -p src && echo hello > src/a.txt && echo done' }),
    );
    const turn = await world.finished('writes');
    expect(turn.status).toMatchObject({
      phase: 'Completed',
      exitCode: 0,
      files: { created: 1, changed: 0, deleted: 0, paths: ['/src/a.txt'] },
    });
    expect(conditionOf(turn, 'Succeeded')?.status).toBe('True');
    expect(turn.status?.['output']).toContain('done');
    // CD4: a claim of its own, named after it and gone with it.
    const claim = await world.get('pvc', 'plain');
    expect(claim.status?.phase).toBe('Bound');
    expect((await world.get('workspace', 'plain')).status?.['volume']).toEqual({
      mode: 'Persistent',
      claimName: 'plain',
    });
  });

  test('a command that fails ends the turn Failed with its exit code, and its files are kept', async () => {
    await world.apply(
      world.workspace('fails'),
      world.turn('fails', { workspace: 'fails', command: 'echo kept > kept.txt; exit 3' }),
    );
    const turn = await world.finished('fails');
    expect(turn.status).toMatchObject({ phase: 'Failed', reason: 'CommandFailed', exitCode: 3, files: { created: 1 } });
    expect(conditionOf(turn, 'Succeeded')?.status).toBe('False');
  });

  test('a later command sees the files of an earlier one, in a sandbox that is reused', async () => {
    await world.apply(
      world.workspace('reuse'),
      world.turn('first', { workspace: 'reuse', command: 'echo one > one.txt' }),
    );
    await world.finished('first');
    const pod = (await world.list('pods', 'lathe.dev/workspace=reuse'))[0]?.metadata.name;
    await world.apply(world.turn('second', { workspace: 'reuse', command: 'cat one.txt' }));
    const second = await world.finished('second');
    expect(second.status?.['output']).toContain('one');
    expect((await world.list('pods', 'lathe.dev/workspace=reuse'))[0]?.metadata.name).toBe(pod);
  });

  test('a workspace without a command has no pod and no volume', async () => {
    await world.apply({
      apiVersion: 'lathe.dev/v1alpha1',
      kind: 'Workspace',
      metadata: { name: 'idle', namespace: world.namespace },
      spec: {},
    });
    await world.condition('workspace', 'idle', 'Ready', { status: 'True' });
    expect(await world.list('pods', 'lathe.dev/workspace=idle')).toEqual([]);
    expect((await world.list('pvc')).filter((pvc) => pvc.metadata.name === 'idle')).toEqual([]);
  });

  test('the second turn of a workspace waits for the first, and both finish in order', async () => {
    await world.apply(
      world.workspace('order'),
      world.turn('slow', { workspace: 'order', command: 'sleep 4; echo slow >> log' }),
    );
    await expect.poll(async () => (await world.get('turn', 'slow')).status?.phase, { timeout: 60_000 }).toBe('Running');
    await world.apply(world.turn('after', { workspace: 'order', command: 'echo after >> log; cat log' }));
    await expect.poll(async () => (await world.get('turn', 'after')).status?.phase, { timeout: 10_000 }).toBe('Queued');
    expect((await world.get('turn', 'slow')).status?.phase).toBe('Running');
    expect((await world.finished('after')).status?.['output']).toContain('slow\nafter');
  });

  test('a command over its time ends within its grace, and the turn says DeadlineExceeded', async () => {
    await world.apply(
      world.workspace('deadline'),
      world.turn('over', {
        workspace: 'deadline',
        command: 'trap "" TERM; echo begun; sleep 600',
        limits: { commandTimeout: '2s' },
      }),
    );
    const turn = await world.finished('over', 60_000);
    expect(turn.status).toMatchObject({ phase: 'Failed', reason: 'DeadlineExceeded' });
    expect(turn.status?.['output']).toContain('begun');
  });

  test('a scripted model reads, edits and reruns until it has no further call', async () => {
    const script = [
      { text: 'I look first.', tools: [{ command: 'ls' }] },
      { text: 'Now I write.', tools: [{ command: 'echo 42 > answer.txt' }, { command: 'cat answer.txt' }] },
      { text: 'The answer is in answer.txt.' },
    ];
    const name = `scripted-${world.namespace}`;
    await world.apply(
      {
        apiVersion: 'lathe.dev/v1alpha1',
        kind: 'WorkspaceClass',
        metadata: { name },
        spec: {
          ...SMALL,
          defaultModel: 'scripted',
          models: [{ name: 'scripted', provider: 'Scripted', script: JSON.stringify(script) }],
        },
      },
      world.workspace('model', { class: name }),
      world.turn('asks', { workspace: 'model', message: 'What is the answer?' }),
    );
    try {
      const turn = await world.finished('asks');
      expect(turn.status).toMatchObject({
        phase: 'Completed',
        reason: 'Answered',
        answer: 'The answer is in answer.txt.',
        steps: 3,
        files: { created: 1, changed: 0, deleted: 0 },
      });
    } finally {
      await world.kubectl.run(['delete', 'workspaceclass', name, '--ignore-not-found', '--wait=false']);
    }
  });
});

describe('what a person sees', () => {
  test('kubectl explains the fields', async () => {
    const text = await world.kubectl.run(['explain', 'workspace.spec.files']);
    expect(text).toMatch(/maxFileSize/);
  });

  test('kubectl wait, get and describe tell how a turn ended and which events led there', async () => {
    await world.apply(world.workspace('seen'), world.turn('seen', { workspace: 'seen', command: 'true' }));
    await world.kubectl.run(['-n', world.namespace, 'wait', '--for=condition=Finished', 'turn/seen', '--timeout=90s']);
    const wide = await world.kubectl.run(['-n', world.namespace, 'get', 'turn', 'seen', '-o', 'wide']);
    expect(wide).toMatch(/Completed/);
    const described = await world.kubectl.run(['-n', world.namespace, 'describe', 'turn', 'seen']);
    expect(described).toMatch(/Events:/);
    expect(described).toMatch(/Completed/);
  });

  test('deleting a workspace takes its turns, sandbox and pod with it, without finalizers', async () => {
    await world.apply(world.workspace('gone'), world.turn('gone', { workspace: 'gone', command: 'true' }));
    await world.finished('gone');
    const before = await world.get('workspace', 'gone');
    expect((before.metadata as { finalizers?: unknown }).finalizers).toBeUndefined();
    await world.kubectl.run(['-n', world.namespace, 'delete', 'workspace', 'gone', '--wait', '--timeout=30s']);
    await expect.poll(() => world.list('pods', 'lathe.dev/workspace=gone'), { timeout: 60_000 }).toEqual([]);
    await expect
      .poll(async () => (await world.list('sandboxes')).filter((s) => s.metadata.name === 'gone'), { timeout: 60_000 })
      .toEqual([]);
  });
});
