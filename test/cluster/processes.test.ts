import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { isRunning, lastLines, listProcesses, startProcess, stopProcess } from './processes.ts';

let root: string;
beforeEach(async () => void (root = await mkdtemp(join(tmpdir(), 'lathe-processes-'))));
afterEach(() => rm(root, { recursive: true }));
const places = () => ({ pids: join(root, 'pids'), logs: root });

test('a started program is known, its output is kept, and it is gone after it was stopped', async () => {
  await startProcess(places(), 'sleeper', ['sh', '-c', 'echo hello; exec sleep 60']);
  expect(await isRunning(places(), 'sleeper')).toBe(true);
  await expect.poll(() => lastLines(places(), 'sleeper')).toBe('hello');
  await stopProcess(places(), 'sleeper');
  expect(await isRunning(places(), 'sleeper')).toBe(false);
  expect(await listProcesses(places())).toEqual([]);
});

test('a program that ignores TERM is killed after the grace', async () => {
  await startProcess(places(), 'stubborn', ['sh', '-c', 'trap "" TERM; echo ready; while :; do sleep 0.05; done']);
  await expect.poll(() => lastLines(places(), 'stubborn')).toBe('ready');
  await stopProcess(places(), 'stubborn', 100);
  expect(await isRunning(places(), 'stubborn')).toBe(false);
});
