/** Which processes a command left behind, and their end. Verified by looking again until none is left. */
import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';

/**
 * `pid-namespace`: everything here but us and init is the command's (the pod). `descendants`: only what has the mark
 * in its environment or the command's session (a plain process on a shared machine).
 */
export type Scope = 'pid-namespace' | 'descendants';
export type Mark = Readonly<{ name: string; value: string; session: number }>;

export function ownedProcesses(scope: Scope, mark: Mark | undefined): readonly number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter(
      (pid) =>
        pid !== process.pid &&
        pid !== 1 &&
        isAlive(pid) &&
        (scope === 'pid-namespace' || (mark !== undefined && hasMark(pid, mark))),
    );
}

/** TERM to each. Those that are gone meanwhile are no error. */
export function signalAll(pids: readonly number[], signal: NodeJS.Signals): void {
  for (const pid of pids) {
    try {
      process.kill(pid, signal);
    } catch {
      // Gone, or (never in a pod) not ours.
    }
  }
}

/** Stops all of them so that none can fork on, kills, looks again. @returns how many there were; -1 if some would not go */
export async function endAll(scope: Scope, mark: Mark | undefined): Promise<number> {
  const seen = new Set<number>();
  for (let round = 0; round < 200; round += 1) {
    const pids = ownedProcesses(scope, mark);
    if (pids.length === 0) return seen.size;
    for (const pid of pids) seen.add(pid);
    signalAll(pids, 'SIGSTOP');
    signalAll(pids, 'SIGKILL');
    // A killed process is gone once the kernel and init have seen to it.
    await delay(round < 10 ? 1 : 20);
  }
  return -1;
}

/** Zombies have ended; init reaps them. */
function isAlive(pid: number): boolean {
  const stat = read(`/proc/${pid}/stat`);
  return stat !== '' && !/^[ZX]/.test(stat.slice(stat.lastIndexOf(')') + 2));
}

function hasMark(pid: number, mark: Mark): boolean {
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
