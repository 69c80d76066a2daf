/**
 * A `true`-like command with its durable commit, in a warm sandbox of a workspace of 1,000 files, through the turn
 * controller's API; against `exec` of the same command in the same pod over one kept Kubernetes websocket client.
 */
import { PassThrough } from 'node:stream';
import { Exec, KubeConfig, type V1Status } from '@kubernetes/client-node';
import { randomUUID } from 'node:crypto';
import type { ExecResponse, Result, TurnsServiceClient } from '../proto/gen/lathe/turns/v1/turns.ts';
import { kubectlOf } from '../test/installation/kubectl.ts';
import { connectTurns } from '../test/installation/turns-client.ts';
import type { Bench } from './bench.ts';
import { measure } from './measure.ts';

const TEAM = 'lathe-bench';
const WORKSPACE = 'exec';
const FILES = 1_000;

export const execBench: Bench = async ({ installation, samples = 300, onProgress }, signal) => {
  const { cluster, namespace } = installation;
  const kubectl = kubectlOf(cluster);
  await kubectl.run(['apply', '-f', '-'], { input: JSON.stringify(manifests()) }, signal);
  await kubectl.run(
    ['-n', TEAM, 'wait', '--for=condition=Ready', `workspace/${WORKSPACE}`, '--timeout=60s'],
    {},
    signal,
  );
  try {
    await using turns = await connectTurns(cluster, { namespace }, signal);
    onProgress(`the turn controller is dialled ${turns.direct ? 'at its pod' : 'through a port-forward'}`);
    const filled = await run(
      turns.client,
      `mkdir -p src && for i in $(seq ${FILES}); do echo "line $i of a small file" > "src/file-$i.txt"; done`,
      signal,
    );
    if (filled.created + filled.changed === 0) throw new Error('the workspace could not be filled');

    const pod = await sandboxPod(kubectl, signal);
    const kubeConfig = new KubeConfig();
    kubeConfig.loadFromFile(cluster.kubeconfig);
    if (cluster.context !== undefined) kubeConfig.setCurrentContext(cluster.context);
    const exec = new Exec(kubeConfig);

    return await measure(
      {
        subject: {
          name: 'exec with durable commit',
          sample: async () => {
            const result = await run(turns.client, 'true', signal);
            if (result.state !== 'done' || result.exitCode !== 0)
              throw new Error(`exec ended ${JSON.stringify(result.state)}`);
          },
        },
        reference: { name: 'kubernetes exec, kept websocket client', sample: () => execInPod(exec, pod) },
        samples,
        warmUp: 20,
        settleMs: 150,
        onProgress: (done, of) => {
          if (done % 50 === 0) onProgress(`${done} of ${of} samples`);
        },
      },
      signal,
    );
  } finally {
    await kubectl.run(['delete', 'namespace', TEAM, '--ignore-not-found', '--wait=false']);
  }
};

async function run(client: TurnsServiceClient, command: string, signal: AbortSignal): Promise<Result> {
  const call = client.exec({
    workspace: { namespace: TEAM, name: WORKSPACE },
    command,
    timeoutMs: 120_000,
    actor: 'bench',
    idempotencyKey: randomUUID(),
    stdin: Buffer.alloc(0),
  });
  const cancel = () => call.cancel();
  signal.addEventListener('abort', cancel, { once: true });
  try {
    for await (const { message } of call as AsyncIterable<ExecResponse>) {
      if (message?.$case === 'result') return message.value;
      if (message?.$case === 'redirect')
        throw new Error('another replica owns the workspace; run the bench with one replica');
    }
    throw new Error('the stream ended without a result');
  } finally {
    signal.removeEventListener('abort', cancel);
  }
}

async function sandboxPod(kubectl: ReturnType<typeof kubectlOf>, signal: AbortSignal): Promise<string> {
  const pods = await kubectl.json<{ items: { metadata: { name: string } }[] }>(
    ['-n', TEAM, 'get', 'pods', '-l', `lathe.dev/workspace=${WORKSPACE}`],
    signal,
  );
  const name = pods.items[0]?.metadata.name;
  if (name === undefined)
    throw new Error(
      `workspace ${WORKSPACE} has no sandbox pod after a command; look with: kubectl -n ${TEAM} get sandboxes`,
    );
  return name;
}

/** The same command, its end seen by its status, as a program that kept its client would do it. */
async function execInPod(exec: Exec, pod: string): Promise<void> {
  const stdout = new PassThrough().resume();
  const stderr = new PassThrough().resume();
  let socket: { close(): void } | undefined;
  const status = await new Promise<V1Status>((resolve, reject) => {
    exec
      .exec(TEAM, pod, 'work', ['bash', '-c', 'true'], stdout, stderr, null, false, resolve)
      .then((s) => (socket = s), reject);
  });
  socket?.close();
  if (status.status !== 'Success') throw new Error(`kubernetes exec ended ${status.status}: ${status.message}`);
}

function manifests(): object {
  return {
    apiVersion: 'v1',
    kind: 'List',
    items: [
      { apiVersion: 'v1', kind: 'Namespace', metadata: { name: TEAM } },
      {
        apiVersion: 'lathe.dev/v1alpha1',
        kind: 'Workspace',
        metadata: { name: WORKSPACE, namespace: TEAM },
        spec: { volume: { mode: 'Ephemeral' }, adoptFrom: 'None' },
      },
    ],
  };
}
