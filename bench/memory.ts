/** How much processes of this machine grow while something runs: those of a local cluster are seen from outside. */
import { readdirSync, readFileSync } from 'node:fs';

/** Bytes, by name; undefined: no such process was seen. */
export type Growth<Name extends string> = Readonly<Record<Name, number | undefined>>;

const EVERY_MS = 100;

/** Runs `work`; of several processes with one name the one that grew most counts. `programs`: what a command line has in it. */
export async function growthOf<Name extends string>(
  programs: Readonly<Record<Name, string>>,
  work: () => Promise<void>,
): Promise<Growth<Name>> {
  const names = Object.keys(programs) as Name[];
  const pids = processes().flatMap(({ pid, command }) => {
    const name = names.find((one) => command.includes(programs[one]));
    const base = residentBytes(pid);
    // The init before it has the same command line, and next to no memory.
    return name === undefined || base < 8 * 1024 * 1024 ? [] : [{ pid, name, base, peak: base }];
  });
  const look = () => {
    for (const one of pids) one.peak = Math.max(one.peak, residentBytes(one.pid));
  };
  const timer = setInterval(look, EVERY_MS);
  try {
    await work();
    look();
  } finally {
    clearInterval(timer);
  }
  const growth = (name: Name) => {
    const all = pids.filter((one) => one.name === name).map(({ base, peak }) => peak - base);
    return all.length === 0 ? undefined : Math.max(...all);
  };
  return Object.fromEntries(names.map((name) => [name, growth(name)])) as Record<Name, number | undefined>;
}

function processes(): { pid: string; command: string }[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map((pid) => ({ pid, command: read(`/proc/${pid}/cmdline`).replaceAll('\0', ' ') }));
}

function residentBytes(pid: string): number {
  return Number(/^VmRSS:\s*(\d+) kB$/m.exec(read(`/proc/${pid}/status`))?.[1] ?? 0) * 1024;
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}
