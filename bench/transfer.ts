/**
 * `place` and `read`: 200 files of 2 KB into and out of a workspace, by SDK and CLI through the live API, against the
 * same through a pod: tar or one command per file over a kept Kubernetes websocket client, and `kubectl cp`.
 */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough, Readable, Writable } from 'node:stream';
import { Exec, KubeConfig, type V1Status } from '@kubernetes/client-node';
import { bundle } from '../images/bundle.ts';
import { createLathe, type Workspace } from '../sdk/index.ts';
import { tarOf } from '../sdk/upload.ts';
import { kubectlOf } from '../test/installation/kubectl.ts';
import type { Bench, BenchOptions } from './bench.ts';
import { measure, type Figures, type Side } from './measure.ts';

const TEAM = 'lathe-bench';
const NAME = 'transfer';
const FILES = 200;
const BYTES = 2_048;
const SAMPLES = { atOnce: 30, oneByOne: 10, cli: 10 } as const;
/** Files of one sample, one after the other. */
const LOOP = 20;

type Place = Readonly<{
  workspace: Workspace;
  /** Runs one command in the pod, over the kept client. */
  inPod(command: string, input?: Buffer): Promise<Buffer>;
  /** A folder with the files. */
  folder: string;
  files: Readonly<Record<string, Buffer>>;
  cli(...words: string[]): Promise<void>;
  kubectl(...words: string[]): Promise<void>;
  pod: string;
}>;
type Part = Readonly<{ part: string; samples: number; subject: Side; reference: Side }>;

export const placeBench: Bench = (options, signal) =>
  overParts(options, signal, ({ workspace, inPod, files, folder, cli, kubectl, pod }) => {
    const entries = Object.entries(files).map(([path, content]) => ({ path, content }));
    let n = 0;
    const fresh = () => `d${(n += 1)}`;
    const one = entries[0]?.content ?? Buffer.alloc(0);
    return [
      {
        part: 'at once',
        samples: SAMPLES.atOnce,
        subject: {
          name: 'sdk, one call',
          sample: async () => {
            const to = fresh();
            await workspace.writeAll(Object.fromEntries(Object.entries(files).map(([p, c]) => [`/${to}${p}`, c])));
          },
        },
        reference: {
          name: 'tar over a kept exec client',
          sample: async () => {
            const to = fresh();
            await inPod(`mkdir -p /workspace/${to} && tar -xf - -C /workspace/${to}`, await tarOf(entries));
          },
        },
      },
      {
        part: `one by one, ${LOOP} files`,
        samples: SAMPLES.oneByOne,
        subject: { name: 'sdk, a call per file', sample: loop(() => workspace.write(`/${fresh()}`, one)) },
        reference: {
          name: 'exec per file over a kept client',
          sample: loop(() => inPod(`head -c ${BYTES} > /workspace/${fresh()}`, one)),
        },
      },
      {
        part: 'command line',
        samples: SAMPLES.cli,
        subject: { name: 'kubectl lathe cp', sample: () => cli('cp', folder, `${NAME}:/${fresh()}`) },
        reference: {
          name: 'kubectl cp',
          sample: () => kubectl('cp', folder, `${pod}:/workspace/${fresh()}`, '-c', 'work'),
        },
      },
    ];
  });

export const readBench: Bench = (options, signal) =>
  overParts(options, signal, ({ workspace, inPod, files, cli, kubectl, pod, folder }) => {
    const paths = Object.keys(files);
    let n = 0;
    const fresh = () => join(folder, `../back${(n += 1)}`);
    const setUp: Promise<unknown>[] = [];
    const once = (index: number) => (index === -1 ? Promise.all(setUp) : Promise.resolve([]));
    setUp.push(
      workspace.writeAll(Object.fromEntries(Object.entries(files).map(([p, c]) => [`/read${p}`, c]))),
      tarOf(Object.entries(files).map(([path, content]) => ({ path, content }))).then((tar) =>
        inPod('mkdir -p /workspace/read && tar -xf - -C /workspace/read', tar),
      ),
    );
    const before = async (index: number) => void (await once(index));
    return [
      {
        part: 'at once',
        samples: SAMPLES.atOnce,
        subject: {
          name: 'sdk, one call',
          before,
          sample: async () => {
            const { body } = await workspace.ask('GET', 'archive', { query: { prefix: '/read/' } });
            if (body.length < FILES * BYTES) throw new Error('the archive is too small');
          },
        },
        reference: {
          name: 'tar over a kept exec client',
          before,
          sample: async () => {
            if ((await inPod('tar -cf - -C /workspace/read .')).length < FILES * BYTES)
              throw new Error('the archive is too small');
          },
        },
      },
      {
        part: `one by one, ${LOOP} files`,
        samples: SAMPLES.oneByOne,
        subject: {
          name: 'sdk, a call per file',
          sample: loop((i) => workspace.read(`/read${paths[i % FILES] ?? ''}`)),
        },
        reference: {
          name: 'exec per file over a kept client',
          sample: loop((i) => inPod(`cat /workspace/read${paths[i % FILES] ?? ''}`)),
        },
      },
      {
        part: 'command line',
        samples: SAMPLES.cli,
        subject: {
          name: 'kubectl lathe cp',
          sample: async () => {
            const to = fresh();
            await cli('cp', `${NAME}:/read`, to);
            if ((await readdir(to)).length !== FILES) throw new Error('files are missing');
          },
        },
        reference: {
          name: 'kubectl cp',
          sample: async () => {
            const to = fresh();
            await kubectl('cp', `${pod}:/workspace/read`, to, '-c', 'work');
            if ((await readdir(to)).length !== FILES) throw new Error('files are missing');
          },
        },
      },
    ];
  });

function loop(work: (i: number) => Promise<unknown>): Side['sample'] {
  return async (index) => {
    for (let i = 0; i < LOOP; i += 1) await work(Math.abs(index) * LOOP + i);
  };
}

async function overParts(
  { installation, samples, onProgress }: BenchOptions,
  signal: AbortSignal,
  partsOf: (place: Place) => readonly Part[],
): Promise<Readonly<{ parts: readonly (Figures & Readonly<{ part: string }>)[] }>> {
  const { cluster } = installation;
  const kubectl = kubectlOf(cluster);
  const scratch = await mkdtemp(join(tmpdir(), 'lathe-bench-'));
  await using lathe = createLathe({
    kubeconfig: cluster.kubeconfig,
    namespace: TEAM,
    ...(cluster.context === undefined ? {} : { context: cluster.context }),
  });
  try {
    // Of a bench before: it is told to go and not waited for.
    await kubectl.run(['delete', 'namespace', TEAM, '--ignore-not-found', '--timeout=120s'], {}, signal);
    await kubectl.run(['apply', '-f', '-'], { input: JSON.stringify(manifests()) }, signal);
    const workspace = await lathe.workspace({
      name: NAME,
      spec: { volume: { mode: 'Ephemeral' }, adoptFrom: 'None' },
      signal,
    });
    await kubectl.run(['-n', TEAM, 'wait', '--for=condition=Finished', 'turn/warm', '--timeout=120s'], {}, signal);
    const [pod = ''] = (
      await kubectl.run(['-n', TEAM, 'get', 'pods', '-l', `lathe.dev/workspace=${NAME}`, '-o', 'name'], {}, signal)
    )
      .trim()
      .replace('pod/', '')
      .split('\n');
    const folder = join(scratch, 'files');
    await mkdir(folder);
    const files: Record<string, Buffer> = {};
    for (let i = 0; i < FILES; i += 1) {
      const content = Buffer.from(randomBytes(BYTES / 2).toString('hex'));
      files[`/file-${i}.txt`] = content;
      await writeFile(join(folder, `file-${i}.txt`), content);
    }
    const program = await bundle('kubectl-lathe', scratch);
    const common = ['--kubeconfig', cluster.kubeconfig, '-n', TEAM];
    const place: Place = {
      workspace,
      inPod: execOver(cluster, pod),
      folder,
      files,
      pod,
      cli: (...words) => finished(process.execPath, [program, ...words, ...common]),
      kubectl: (...words) => finished(cluster.kubectl, [...common, ...words]),
    };
    const parts: (Figures & { part: string })[] = [];
    for (const { part, samples: own, subject, reference } of partsOf(place)) {
      const figures = await measure(
        { subject, reference, samples: samples ?? own, warmUp: Math.min(3, samples ?? own), settleMs: 150 },
        signal,
      );
      onProgress(`${part}: ${figures.ratio.p50} × ${reference.name}`);
      parts.push({ part, ...figures });
    }
    return { parts };
  } finally {
    await rm(scratch, { recursive: true, force: true });
    await kubectl.run(['delete', 'namespace', TEAM, '--ignore-not-found', '--wait=false']);
  }
}

function execOver(cluster: BenchOptions['installation']['cluster'], pod: string): Place['inPod'] {
  const kubeConfig = new KubeConfig();
  kubeConfig.loadFromFile(cluster.kubeconfig);
  if (cluster.context !== undefined) kubeConfig.setCurrentContext(cluster.context);
  const exec = new Exec(kubeConfig);
  return async (command, input) => {
    const pieces: Buffer[] = [];
    const stdout = new Writable({
      write: (piece: Buffer, _, done) => {
        pieces.push(piece);
        done();
      },
    });
    const stderr = new PassThrough().resume();
    let socket: { close(): void } | undefined;
    const stdin = input === undefined ? null : Readable.from([input]);
    const status = await new Promise<V1Status>((resolve, reject) => {
      exec
        .exec(TEAM, pod, 'work', ['bash', '-c', command], stdout, stderr, stdin, false, resolve)
        .then((s) => (socket = s), reject);
    });
    socket?.close();
    if (status.status !== 'Success') throw new Error(`kubernetes exec ended ${status.status}: ${status.message}`);
    return Buffer.concat(pieces);
  };
}

function finished(program: string, words: readonly string[]): Promise<void> {
  return new Promise((resolve, reject) => {
    const child = spawn(program, words, { stdio: ['ignore', 'ignore', 'inherit'] });
    child.once('error', reject);
    child.once('exit', (code) =>
      code === 0 ? resolve() : reject(new Error(`${program} ${words.join(' ')} ended with ${code}`)),
    );
  });
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
        metadata: { name: NAME, namespace: TEAM },
        spec: { volume: { mode: 'Ephemeral' }, adoptFrom: 'None' },
      },
      {
        apiVersion: 'lathe.dev/v1alpha1',
        kind: 'Turn',
        metadata: { name: 'warm', namespace: TEAM },
        spec: { workspace: NAME, command: 'true' },
      },
    ],
  };
}
