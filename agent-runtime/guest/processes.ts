/** Which processes a command left behind, and their end. Verified by looking again until none is left. */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';

/** The processes that a command is answered for. */
export interface Processes {
  /** Those that live. Zombies have ended; init reaps them. */
  find(): readonly number[];
  /** What is gone meanwhile is no error. */
  signal(signal: NodeJS.Signals): void;
}

/** Everything here but us and init is the command's: the pod. */
export const ofNamespace: Processes = {
  find: () => pids().filter((pid) => pid !== process.pid && pid !== 1 && isAlive(pid)),
  // To all at once, so that none can fork on between two looks: the kernel leaves out init and whoever calls.
  signal: (signal) => send(-1, signal),
};

/** Only what has the mark in its environment or the command's session: a plain process on a shared machine. */
export function ofMark(mark: Readonly<{ name: string; value: string; session: number }>): Processes {
  const find = () => pids().filter((pid) => pid !== process.pid && isAlive(pid) && hasMark(pid, mark));
  return {
    find,
    signal: (signal) => {
      for (const pid of find()) send(pid, signal);
    },
  };
}

/** Kills, and looks again. @returns how many there were; -1 if some would not go */
export async function endAll(processes: Processes): Promise<number> {
  const seen = new Set<number>();
  for (let round = 0; round < 200; round += 1) {
    const found = processes.find();
    if (found.length === 0) return seen.size;
    for (const pid of found) seen.add(pid);
    processes.signal('SIGKILL');
    // A killed process is gone once the kernel has seen to it.
    await delay(round < 10 ? 1 : 20);
  }
  return -1;
}

/** Whether `ofNamespace` may be used: it would end everything on a machine. In the pod init is what started us. */
export function hasOwnNamespace(): boolean {
  /** proc(5): what every kernel calls the one that it started with. */
  const initial = 'pid:[4026531836]';
  return process.ppid === 1 && readlinkSync('/proc/self/ns/pid') !== initial;
}

function pids(): number[] {
  const all: number[] = [];
  for (const name of readdirSync('/proc')) {
    const pid = Number(name);
    if (Number.isInteger(pid)) all.push(pid);
  }
  return all;
}

function send(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {
    // Gone, or (never in a pod) not ours.
  }
}

function isAlive(pid: number): boolean {
  const stat = read(`/proc/${pid}/stat`);
  return stat !== '' && !/^[ZX]/.test(stat.slice(stat.lastIndexOf(')') + 2));
}

function hasMark(pid: number, mark: Readonly<{ name: string; value: string; session: number }>): boolean {
  const stat = read(`/proc/${pid}/stat`);
  const session = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[3]);
  return session === mark.session || read(`/proc/${pid}/environ`).split('\0').includes(`${mark.name}=${mark.value}`);
}

function read(path: string): string {
  try {
    return readFileSync(path, 'latin1');
  } catch {
    return '';
  }
}
