/**
 * A committed tree into an empty volume: 20,000 files of 1 KiB, and one of 1 GiB. The first command of a new pod, from
 * its dispatch to its result; against `tar` over a kept Kubernetes exec client into an empty folder of a bare pod. With it
 * how much the turn controller, the broker and the guest grew in memory.
 */
import { randomUUID } from 'node:crypto';
import { createReadStream, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough, type Readable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import { Exec, KubeConfig, type V1Status } from '@kubernetes/client-node';
import type { ExecResponse, Result, TurnsServiceClient } from '../proto/gen/lathe/turns/v1/turns.ts';
import { kubectlOf, type Tool } from '../test/installation/kubectl.ts';
import { connectTurns } from '../test/installation/turns-client.ts';
import type { Bench } from './bench.ts';
import { measure } from './measure.ts';
import { growthOf, type Growth } from './memory.ts';

const TEAM = 'lathe-bench-hydrate';
const SMALL_FILES = 20_000;
const LARGE_BYTES = 1 << 30;
const PROGRAMS = { turns: 'lathe.js turns', broker: 'broker.js', guest: 'guest.js' } as const;
const SETS = {
  small: {
    part: '20,000 × 1 KiB',
    samples: 5,
    make: `for d in $(seq 200); do mkdir d$d; for f in $(seq 100); do head -c 1024 /dev/urandom > d$d/f$f; done; done`,
  },
  large: { part: '1 × 1 GiB', samples: 3, make: `head -c ${LARGE_BYTES} /dev/urandom > large` },
} as const;

export const hydrateBench: Bench = async ({ installation, samples, onProgress }, signal) => {
  const { cluster, namespace } = installation;
  const kubectl = kubectlOf(cluster);
  const kubeConfig = new KubeConfig();
  kubeConfig.loadFromFile(cluster.kubeconfig);
  if (cluster.context !== undefined) kubeConfig.setCurrentContext(cluster.context);
  const exec = new Exec(kubeConfig);
  const folder = mkdtempSync(join(tmpdir(), 'lathe-bench-hydrate-'));
  await kubectl.run(
    ['apply', '-f', '-'],
    { input: JSON.stringify(manifests(await sandboxImage(kubectl, signal))) },
    signal,
  );
  try {
    await using turns = await connectTurns(cluster, { namespace }, signal);
    await kubectl.run(['-n', TEAM, 'wait', '--for=condition=Ready', 'pod/bare', '--timeout=120s'], {}, signal);
    const part = async (set: keyof typeof SETS) => {
      const archive = archiveOf(folder, set);
      await kubectl.run(['-n', TEAM, 'wait', '--for=condition=Ready', `workspace/${set}`, '--timeout=60s'], {}, signal);
      const made = await run(turns.client, set, SETS[set].make, signal);
      if (made.created === 0) throw new Error(`the workspace could not be filled: ${made.reason} ${made.refusedJson}`);
      const grown: Growth<keyof typeof PROGRAMS>[] = [];
      const figures = await measure(
        {
          subject: {
            name: 'hydrate: first command in a new pod',
            before: () => newPod(kubectl, set, signal),
            sample: async () => {
              const growth = await growthOf(PROGRAMS, async () => {
                const result = await run(turns.client, set, 'true', signal);
                if (result.exitCode !== 0) throw new Error(`the command ended ${result.state} ${result.reason}`);
              });
              grown.push(growth);
            },
          },
          reference: {
            name: 'tar over exec, kept websocket client',
            before: () => execInPod(exec, 'rm -rf /data/*'),
            sample: () => execInPod(exec, 'tar -x -f - -C /data', createReadStream(archive)),
          },
          samples: samples ?? SETS[set].samples,
          warmUp: 1,
          settleMs: 500,
          onProgress: (done, of) => onProgress(`${set}: ${done} of ${of} samples`),
        },
        signal,
      );
      return { part: SETS[set].part, ...figures, grownMiB: most(grown) };
    };
    const small = await part('small');
    return { parts: [small, await part('large')] };
  } finally {
    rmSync(folder, { recursive: true, force: true });
    await kubectl.run(['delete', 'namespace', TEAM, '--ignore-not-found', '--wait=false']);
  }
};

function most(all: readonly Growth<keyof typeof PROGRAMS>[]): Record<string, number | null> {
  return Object.fromEntries(
    Object.keys(PROGRAMS).map((name) => {
      const seen = all.flatMap((one) => one[name as keyof typeof PROGRAMS] ?? []);
      // Null: its processes are not on this machine.
      return [name, seen.length === 0 ? null : Math.round(Math.max(...seen) / 2 ** 20)];
    }),
  );
}

/** Another pod with an empty volume, attached and idle. */
async function newPod(kubectl: Tool, workspace: string, signal: AbortSignal): Promise<void> {
  const selector = ['-n', TEAM, 'get', 'pods', '-l', `lathe.dev/workspace=${workspace}`];
  type Pods = { items: { metadata: { name: string; uid: string; deletionTimestamp?: string } }[] };
  const before = (await kubectl.json<Pods>(selector, signal)).items.map((pod) => pod.metadata);
  if (before.length > 0)
    await kubectl.run(['-n', TEAM, 'delete', 'pod', ...before.map((pod) => pod.name), '--wait'], {}, signal);
  type Sandboxes = { items: { status?: { conditions?: { type: string; status: string }[] } }[] };
  for (const began = performance.now(); performance.now() - began < 120_000;) {
    const now = (await kubectl.json<Pods>(selector, signal)).items.filter(
      ({ metadata }) => metadata.deletionTimestamp === undefined && !before.some((pod) => pod.uid === metadata.uid),
    );
    const { items } = await kubectl.json<Sandboxes>(
      ['-n', TEAM, 'get', 'sandboxes', '-l', `lathe.dev/workspace=${workspace}`],
      signal,
    );
    const ready = items.some((s) => s.status?.conditions?.some((c) => c.type === 'Ready' && c.status === 'True'));
    if (now.length > 0 && ready) return void (await delay(1_000, undefined, { signal }));
    await delay(250, undefined, { signal });
  }
  throw new Error(
    `workspace ${workspace} has no new pod after 120 s; look with: kubectl -n ${TEAM} describe sandboxes`,
  );
}

async function run(client: TurnsServiceClient, name: string, command: string, signal: AbortSignal): Promise<Result> {
  const call = client.exec({
    workspace: { namespace: TEAM, name },
    command,
    timeoutMs: 600_000,
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

async function execInPod(exec: Exec, command: string, stdin: Readable | null = null): Promise<void> {
  const stdout = new PassThrough().resume();
  const stderr = new PassThrough().resume();
  let socket: { close(): void } | undefined;
  const status = await new Promise<V1Status>((resolve, reject) => {
    exec
      .exec(TEAM, 'bare', 'bare', ['sh', '-c', command], stdout, stderr, stdin, false, resolve)
      .then((s) => (socket = s), reject);
  });
  socket?.close();
  if (status.status !== 'Success') throw new Error(`kubernetes exec ended ${status.status}: ${status.message}`);
}

/** The same bytes for the other side. */
function archiveOf(folder: string, set: keyof typeof SETS): string {
  const tree = join(folder, set);
  mkdirSync(tree);
  if (set === 'large') execFileSync('sh', ['-c', `head -c ${LARGE_BYTES} /dev/urandom > ${tree}/large`]);
  else {
    for (let i = 0; i < SMALL_FILES; i += 1) {
      if (i % 100 === 0) mkdirSync(join(tree, `d${i / 100}`));
      writeFileSync(join(tree, `d${Math.floor(i / 100)}`, `f${i}`), randomBytes(1_024));
    }
  }
  const archive = join(folder, `${set}.tar`);
  execFileSync('tar', ['-c', '-f', archive, '-C', tree, '.']);
  rmSync(tree, { recursive: true });
  return archive;
}

function manifests(image: string): object {
  const workspace = (name: string, files: object) => ({
    apiVersion: 'lathe.dev/v1alpha1',
    kind: 'Workspace',
    metadata: { name, namespace: TEAM },
    spec: { volume: { mode: 'Ephemeral' }, adoptFrom: 'None', files, environment: { resources: { disk: '6Gi' } } },
  });
  return {
    apiVersion: 'v1',
    kind: 'List',
    items: [
      { apiVersion: 'v1', kind: 'Namespace', metadata: { name: TEAM } },
      workspace('small', {}),
      workspace('large', { maxFileSize: '2Gi', maxTotalSize: '4Gi' }),
      {
        apiVersion: 'v1',
        kind: 'Pod',
        metadata: { name: 'bare', namespace: TEAM },
        spec: {
          automountServiceAccountToken: false,
          terminationGracePeriodSeconds: 0,
          volumes: [{ name: 'data', emptyDir: {} }],
          containers: [
            {
              name: 'bare',
              image,
              imagePullPolicy: 'IfNotPresent',
              command: ['sleep', 'infinity'],
              volumeMounts: [{ name: 'data', mountPath: '/data' }],
            },
          ],
        },
      },
    ],
  };
}

async function sandboxImage(kubectl: Tool, signal: AbortSignal): Promise<string> {
  const classes = await kubectl.json<{
    items: { metadata: { annotations?: Record<string, string> }; spec: { images?: { default?: string } } }[];
  }>(['get', 'workspaceclasses'], signal);
  const image = classes.items.find((c) => c.metadata.annotations?.['lathe.dev/is-default-class'] === 'true')?.spec
    .images?.default;
  if (image === undefined)
    throw new Error('no default WorkspaceClass names an image; install the chart with its default class');
  return image;
}
