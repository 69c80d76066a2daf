/** The cluster that is built and started on this machine. */
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { binaries, type Binaries } from './binaries.ts';
import type { Cluster, ClusterStatus, Say } from './cluster.ts';
import { ctr, importBaseImages, importImage, listImages, socketOf, writeContainerConfig } from './containers.ts';
import { clusterObjects, controlPlane, controlPlaneFiles, type Program } from './control-plane.ts';
import { cgroupsDown, cgroupsUp } from './cgroups.ts';
import { layoutOf, SLOTS, stateRoot, type Layout } from './layout.ts';
import { networkDown, networkUp } from './network.ts';
import { ensurePackages } from './packages.ts';
import { makePki } from './pki.ts';
import { isRunning, lastLines, listProcesses, logOf, startProcess, stopProcess } from './processes.ts';
import { run } from './run.ts';

const PACKAGES = [
  ...['iproute2', 'iptables', 'nftables', 'conntrack', 'ipset', 'procps', 'util-linux', 'openssl', 'unzip'],
  ...['containernetworking-plugins', 'catatonit', 'busybox-static', 'libseccomp-dev', 'pkg-config', 'gcc', 'libc6-dev'],
] as const;

export async function builtUp(name: string, say: Say, signal: AbortSignal): Promise<Cluster> {
  if (process.platform !== 'linux' || process.getuid?.() !== 0) {
    throw new Error(
      'no Docker engine answers, and building a cluster needs root on Linux; start Docker, run as root, or pass --context NAME',
    );
  }
  const layout = layoutOf(name, await slotOf(name));
  const began = performance.now();
  await ensurePackages(PACKAGES, say, signal);
  const programs = await binaries(say, signal);
  const cluster: Cluster = {
    name,
    kind: 'built',
    kubeconfig: layout.kubeconfig,
    kubectl: programs['kubectl'] ?? 'kubectl',
    helm: programs['helm'] ?? 'helm',
    nodeAddress: layout.nodeAddress,
    auditLog: layout.auditLog,
  };
  const wanted = controlPlane(layout, programs);
  const dead = await deadOf(layout, wanted);
  if (dead.length === wanted.length && (await listProcesses(layout)).length > 0) {
    // The machine went down, or everything was killed: what was left half-done is not worth repairing.
    say(`cluster ${name} was left behind, nothing of it runs: starting over`);
    await builtDown(name, say, signal);
    return await builtUp(name, say, signal);
  }
  if (dead.length === 0) return cluster;
  if (dead.length < wanted.length)
    say(`cluster ${name}: starting again what has ended: ${dead.map((p) => p.name).join(', ')}`);

  for (const folder of [layout.root, layout.logs, layout.pids, layout.run]) await mkdir(folder, { recursive: true });
  await makePki(layout, signal);
  await networkUp(layout, signal);
  await cgroupsUp(layout);
  await writeContainerConfig(layout, programs);
  for (const [file, text] of Object.entries(controlPlaneFiles(layout)))
    await writeIfChanged(join(layout.root, file), text);
  for (const program of dead) {
    signal.throwIfAborted();
    await startProcess(layout, program.name, program.command, program.env);
    await ready(layout, program, programs, signal);
    if (program.name === 'containerd') await importBaseImages(layout, programs, signal);
  }
  await usable(layout, programs, signal);
  for (const program of await deadOf(layout, wanted)) {
    throw new Error(
      `${program.name} of cluster ${name} ended soon after its start:\n${await lastLines(layout, program.name)}`,
    );
  }
  say(`cluster ${name} is up: ${((performance.now() - began) / 1000).toFixed(1)} s`);
  return cluster;
}

export async function builtDown(name: string, say: Say, signal: AbortSignal): Promise<void> {
  const slot = await knownSlot(name);
  if (slot === undefined) return;
  const layout = layoutOf(name, slot);
  const running = await listProcesses(layout);
  // The kubelet first, or it starts again what is taken away; containerd last, its tasks are ended through it.
  const last = ['containerd'];
  for (const program of running.filter((p) => !last.includes(p)).toReversed()) await stopProcess(layout, program);
  if (running.includes('containerd')) await endTasks(layout, await binaries(say, signal), signal);
  await stopProcess(layout, 'containerd');
  await endShims(layout);
  await unmountBelow([layout.root, layout.run], signal);
  await networkDown(layout, signal);
  await cgroupsDown(layout);
  await rm(layout.run, { recursive: true, force: true });
  await rm(layout.root, { recursive: true, force: true });
  say(`cluster ${name} is gone`);
}

export async function builtStatus(name: string, _signal: AbortSignal): Promise<ClusterStatus> {
  const slot = await knownSlot(name);
  if (slot === undefined) return { name, running: false, processes: {} };
  const layout = layoutOf(name, slot);
  const processes: Record<string, boolean> = {};
  for (const program of await listProcesses(layout)) processes[program] = await isRunning(layout, program);
  const states = Object.values(processes);
  return { name, running: states.length > 0 && states.every(Boolean), processes };
}

export async function builtImages(
  name: string,
  images: readonly Readonly<{ image: string; archive: string }>[],
  signal: AbortSignal,
): Promise<void> {
  const layout = layoutOf(name, await slotOf(name));
  const programs = await binaries(() => undefined, signal);
  const there = await listImages(layout, programs, signal);
  for (const { image, archive } of images) if (!there.has(image)) await importImage(layout, programs, archive, signal);
}

/** Its slot if it has one, else the lowest that is free. */
async function slotOf(name: string): Promise<number> {
  const known = await knownSlot(name);
  if (known !== undefined) return known;
  const taken = new Set<number | undefined>();
  for (const other of await readdir(stateRoot).catch(() => [])) taken.add(await knownSlot(other));
  const free = Array.from({ length: SLOTS }, (_, i) => i).find((slot) => !taken.has(slot));
  if (free === undefined)
    throw new Error(`all ${SLOTS} places for clusters are taken; remove one: npm run cluster -- down --name NAME`);
  const root = layoutOf(name, free).root;
  await mkdir(root, { recursive: true, mode: 0o711 });
  await writeFile(join(root, 'slot'), String(free));
  return free;
}

async function knownSlot(name: string): Promise<number | undefined> {
  const text = await readFile(join(stateRoot, name, 'slot'), 'utf8').catch(() => undefined);
  return text === undefined ? undefined : Number(text);
}

/** kube-proxy ends itself when its file is written, be it the same. */
async function writeIfChanged(path: string, text: string): Promise<void> {
  if ((await readFile(path, 'utf8').catch(() => undefined)) !== text) await writeFile(path, text);
}

async function deadOf(layout: Layout, wanted: readonly Program[]): Promise<readonly Program[]> {
  const dead: Program[] = [];
  for (const program of wanted) if (!(await isRunning(layout, program.name))) dead.push(program);
  return dead;
}

async function ready(layout: Layout, program: Program, programs: Binaries, signal: AbortSignal): Promise<void> {
  if (program.ready === undefined) return;
  const probe =
    program.ready === 'node'
      ? () => kubectl(layout, programs, ['get', 'node', layout.name], signal)
      : program.ready === 'apiserver'
        ? () => kubectl(layout, programs, ['get', '--raw', '/readyz'], signal)
        : () => reach(program.ready === 'etcd' ? { host: layout.nodeAddress, port: 2379 } : { path: socketOf(layout) });
  await until(layout, program.name, 60_000, probe, signal);
}

/** Pods can be scheduled and get volumes, and their namespace has its account. */
async function usable(layout: Layout, programs: Binaries, signal: AbortSignal): Promise<void> {
  const ask = (...args: string[]) => kubectl(layout, programs, args, signal);
  const objects = JSON.stringify({ apiVersion: 'v1', kind: 'List', items: clusterObjects() });
  await until(
    layout,
    'kube-apiserver',
    60_000,
    () => kubectl(layout, programs, ['apply', '-f', '-'], signal, objects),
    signal,
  );
  await until(
    layout,
    'kubelet',
    90_000,
    () => ask('wait', '--for=condition=Ready', `node/${layout.name}`, '--timeout=2s'),
    signal,
  );
  await until(
    layout,
    'kube-controller-manager',
    60_000,
    () => ask('-n', 'default', 'get', 'serviceaccount', 'default'),
    signal,
  );
}

async function until(
  layout: Layout,
  name: string,
  withinMs: number,
  probe: () => Promise<unknown>,
  signal: AbortSignal,
): Promise<void> {
  const deadline = performance.now() + withinMs;
  for (;;) {
    signal.throwIfAborted();
    const failure = await probe().then(
      () => undefined,
      (error: unknown) => error,
    );
    if (failure === undefined) return;
    if (!(await isRunning(layout, name)) || performance.now() > deadline) {
      throw new Error(
        `${name} of cluster ${layout.name} is not ready: ${String(failure).slice(0, 500)}\nthe end of ${logOf(layout, name)}:\n${await lastLines(layout, name)}\nnext: npm run cluster -- down --name ${layout.name}, then up again`,
      );
    }
    await delay(150, undefined, { signal });
  }
}

function kubectl(
  layout: Layout,
  programs: Binaries,
  args: readonly string[],
  signal: AbortSignal,
  input?: string,
): Promise<string> {
  const command = [programs['kubectl'] ?? 'kubectl', '--kubeconfig', layout.kubeconfig, ...args] as const;
  return run([...command], signal, input === undefined ? {} : { input });
}

function reach(where: { host: string; port: number } | { path: string }): Promise<void> {
  return new Promise((resolve, reject) => {
    const socket = connect(where);
    socket.once('connect', () => {
      socket.destroy();
      resolve();
    });
    socket.once('error', reject);
  });
}

async function endTasks(layout: Layout, programs: Binaries, signal: AbortSignal): Promise<void> {
  const ask = (...args: string[]) => ctr(layout, programs, args, signal).catch(() => '');
  const tasks = (await ask('tasks', 'list', '-q')).split('\n').filter((id) => id !== '');
  for (const id of tasks) await ask('tasks', 'kill', '--signal', 'SIGKILL', id);
  for (const id of tasks) await ask('tasks', 'delete', '--force', id);
}

/** Shims outlive containerd. Ours are known by the socket that they were started with. */
async function endShims(layout: Layout): Promise<void> {
  for (const entry of await readdir('/proc')) {
    if (!/^\d+$/.test(entry)) continue;
    const words = (await readFile(`/proc/${entry}/cmdline`, 'utf8').catch(() => '')).split('\0');
    if (words[0]?.endsWith('/containerd-shim-runc-v2') && words.includes(socketOf(layout)))
      process.kill(Number(entry), 'SIGKILL');
  }
}

async function unmountBelow(folders: readonly string[], signal: AbortSignal): Promise<void> {
  const mounts = (await readFile('/proc/self/mounts', 'utf8')).split('\n').map((line) => line.split(' ')[1] ?? '');
  // The deepest first.
  for (const mount of mounts.toReversed()) {
    if (folders.some((folder) => mount.startsWith(`${folder}/`)) && existsSync(mount)) {
      await run(['umount', '-l', mount], signal).catch(() => undefined);
    }
  }
}
