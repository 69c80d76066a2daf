/** Each process is killed with SIGKILL in the middle of a command: the result arrives once, or it is unknown and says so. */
import { describe, expect, test } from 'vitest';
import { useWorld, type World } from './world.ts';

const world = useWorld('kills');
/** Leaves one line per run, so a command that ran twice shows. */
const COMMAND = 'echo ran >> runs.txt; echo begun; sleep 8; echo ended';

async function startCommand(name: string): Promise<string> {
  await world.apply(world.workspace(name), world.turn(name, { workspace: name, command: COMMAND }));
  // Running means claimed; the sandbox says when its command is under way.
  await expect
    .poll(async () => (await podOf(world, name)) !== undefined && (await commandRuns(name)), {
      timeout: 90_000,
      interval: 300,
    })
    .toBe(true);
  const pod = await podOf(world, name);
  if (pod === undefined) throw new Error('the pod was there a moment ago');
  return pod;
}

async function podOf(w: World, workspace: string): Promise<string | undefined> {
  return (await w.list('pods', `lathe.dev/workspace=${workspace}`))[0]?.metadata.name;
}

async function commandRuns(workspace: string): Promise<boolean> {
  const pod = await podOf(world, workspace);
  if (pod === undefined) return false;
  return await world.kubectl
    .run(['-n', world.namespace, 'exec', pod, '-c', 'work', '--', 'cat', '/workspace/runs.txt'])
    .then((text) => text.includes('ran'))
    .catch(() => false);
}

/** Kills the node process of a container from inside it, and sees that the kubelet starts the container again. */
async function killNode(namespace: string, pod: string, container: string, shell: readonly string[]): Promise<void> {
  const script =
    // Builtins alone: the broker's image has little else.
    'for d in /proc/[0-9]*; do p=${d#/proc/}; [ "$p" = 1 ] || [ "$p" = $$ ] || case "$(<$d/cmdline)" in *node*.js*) kill -9 "$p";; esac; done 2>/dev/null';
  const restarts = async () => {
    const { status } = await world.get('pod', pod, namespace);
    const containers = (status?.['containerStatuses'] ?? []) as { name: string; restartCount: number }[];
    return containers.find((c) => c.name === container)?.restartCount ?? 0;
  };
  const before = await restarts();
  // Its container may end before the kill has reported.
  await world.kubectl
    .run(['-n', namespace, 'exec', pod, '-c', container, '--', ...shell, script])
    .catch(() => undefined);
  await expect.poll(restarts, { timeout: 60_000, interval: 200 }).toBeGreaterThan(before);
}

async function runsOnce(workspace: string): Promise<void> {
  const check = `${workspace}-check`;
  await world.apply(world.turn(check, { workspace, command: 'cat runs.txt' }));
  const turn = await world.finished(check);
  expect(turn.status?.['output']).toBe('ran\n');
}

describe('a process is killed in the middle of a command', () => {
  test('the guest: the outcome is unknown and says so, nothing of it is committed, and the next command runs', async () => {
    const pod = await startCommand('guest');
    await killNode(world.namespace, pod, 'work', ['bash', '-c']);
    const turn = await world.finished('guest');
    expect(turn.status).toMatchObject({ phase: 'Failed', reason: 'SandboxLost' });
    await world.apply(world.turn('guest-next', { workspace: 'guest', command: 'ls; echo alive' }));
    const next = await world.finished('guest-next');
    expect(next.status).toMatchObject({ phase: 'Completed', exitCode: 0 });
    expect(next.status?.['output']).toBe('alive\n');
  });

  test('the broker: the command goes on and its result arrives once', async () => {
    const pod = await startCommand('broker');
    await killNode(world.namespace, pod, 'broker', ['/bin/bash', '-c']);
    const turn = await world.finished('broker');
    expect(turn.status).toMatchObject({ phase: 'Completed', exitCode: 0, files: { created: 1 } });
    expect(turn.status?.['output']).toBe('begun\nended\n');
    await runsOnce('broker');
  });

  test('the turn controller: the command goes on, the result arrives once and nothing is committed twice', async () => {
    await startCommand('turns');
    const server = (await world.list('pods', 'app.kubernetes.io/component=turns', world.installation.namespace))[0]
      ?.metadata.name;
    await killNode(world.installation.namespace, server ?? '', 'turns', ['bash', '-c']);
    const turn = await world.finished('turns');
    expect(turn.status).toMatchObject({ phase: 'Completed', exitCode: 0, files: { created: 1 } });
    expect(turn.status?.['output']).toBe('begun\nended\n');
    await runsOnce('turns');
  });

  test('the operator: the turn ends all the same, and its status follows when the operator is back', async () => {
    await startCommand('operator');
    const server = (await world.list('pods', 'app.kubernetes.io/component=operator', world.installation.namespace))[0]
      ?.metadata.name;
    await killNode(world.installation.namespace, server ?? '', 'operator', ['bash', '-c']);
    const turn = await world.finished('operator', 120_000);
    expect(turn.status).toMatchObject({ phase: 'Completed', exitCode: 0, files: { created: 1 } });
    await runsOnce('operator');
  });

  test('Postgres: nothing is reported done while it is away, and everything goes on by itself', async () => {
    await startCommand('postgres');
    const namespace = world.installation.namespace;
    const pod = (await world.list('pods', 'app.kubernetes.io/component=postgres', namespace))[0]?.metadata.name ?? '';
    await world.kubectl.run(['-n', namespace, 'delete', 'pod', pod, '--grace-period=0', '--force', '--wait=false']);
    const turn = await world.finished('postgres', 120_000);
    expect(turn.status).toMatchObject({ phase: 'Completed', exitCode: 0, files: { created: 1 } });
    await runsOnce('postgres');
  });

  test('the whole pod: a new one takes its place and the turn says what was lost', async () => {
    const pod = await startCommand('pod');
    await world.kubectl.run([
      '-n',
      world.namespace,
      'delete',
      'pod',
      pod,
      '--grace-period=0',
      '--force',
      '--wait=false',
    ]);
    const turn = await world.finished('pod', 120_000);
    expect(turn.status).toMatchObject({ phase: 'Failed', reason: 'SandboxLost' });
    await world.apply(world.turn('pod-next', { workspace: 'pod', command: 'echo alive' }));
    expect((await world.finished('pod-next', 120_000)).status).toMatchObject({ phase: 'Completed', exitCode: 0 });
  });
});
