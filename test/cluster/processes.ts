/** Long-running programs of a cluster, each known by the pid we wrote down and the moment it started. */
import { spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { z } from 'zod';

const recordSchema = z.object({
  pid: z.number().int().positive(),
  startedAt: z.string(),
  command: z.array(z.string()),
});
export type Recorded = z.infer<typeof recordSchema>;
export type Places = Readonly<{ pids: string; logs: string }>;

/** Starts it in a session of its own, so that it outlives us; output goes to its log. */
export async function startProcess(
  places: Places,
  name: string,
  command: readonly [string, ...string[]],
  env: Readonly<Record<string, string>> = {},
): Promise<Recorded> {
  await mkdir(places.pids, { recursive: true });
  const [program, ...args] = command;
  const log = openSync(logOf(places, name), 'a');
  const child = spawn(program, args, {
    detached: true,
    stdio: ['ignore', log, log],
    env: { PATH: process.env['PATH'], HOME: '/root', ...env },
  });
  closeSync(log);
  await new Promise<void>((resolve, reject) => child.once('spawn', resolve).once('error', reject));
  child.unref();
  const pid = child.pid;
  const startedAt = pid === undefined ? undefined : await startTime(pid);
  if (pid === undefined || startedAt === undefined)
    throw new Error(`${name} ended at once; its log is ${logOf(places, name)}`);
  const record = { pid, startedAt, command: [...command] };
  await writeFile(join(places.pids, `${name}.json`), JSON.stringify(record));
  return record;
}

export async function isRunning(places: Places, name: string): Promise<boolean> {
  const record = await recorded(places, name);
  return record !== undefined && (await startTime(record.pid)) === record.startedAt;
}

export async function listProcesses(places: Places): Promise<readonly string[]> {
  const files = await readdir(places.pids).catch(() => []);
  return files.filter((file) => file.endsWith('.json')).map((file) => file.slice(0, -5));
}

/** TERM, then KILL after `graceMs`. A pid that meanwhile belongs to somebody else is left alone. */
export async function stopProcess(places: Places, name: string, graceMs = 10_000): Promise<void> {
  const record = await recorded(places, name);
  if (record !== undefined) {
    const alive = async () => (await startTime(record.pid)) === record.startedAt;
    const killAt = performance.now() + graceMs;
    if (await alive()) process.kill(record.pid, 'SIGTERM');
    while ((await alive()) && performance.now() < killAt) await delay(50);
    if (await alive()) process.kill(record.pid, 'SIGKILL');
    while (await alive()) await delay(20);
  }
  await rm(join(places.pids, `${name}.json`), { force: true });
}

/** The last lines of its log, for an error. */
export async function lastLines(places: Places, name: string, lines = 15): Promise<string> {
  const text = await readFile(logOf(places, name), 'utf8').catch(() => '(no log)');
  return text.trimEnd().split('\n').slice(-lines).join('\n');
}

export const logOf = (places: Places, name: string): string => join(places.logs, `${name}.log`);

async function recorded(places: Places, name: string): Promise<Recorded | undefined> {
  const text = await readFile(join(places.pids, `${name}.json`), 'utf8').catch(() => undefined);
  return text === undefined ? undefined : recordSchema.parse(JSON.parse(text));
}

/** In clock ticks since boot: with the pid it names one process. Undefined: gone, or a zombie. */
async function startTime(pid: number): Promise<string | undefined> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => undefined);
  const fields = stat?.slice(stat.lastIndexOf(')') + 2).split(' ');
  return fields === undefined || fields[0] === 'Z' ? undefined : fields[19];
}
