/**
 * `npm test`: unit, integration and end-to-end in that order, on what they need, which is taken down again.
 *
 *   npm test [-- unit|integration|e2e …] [--keep] [--context NAME] [--cluster NAME] [anything for vitest: -t PATTERN, a file]
 *
 * Ends with one line `N passed, N failed`. Exit code 1 when a test failed or a part could not run.
 */
import { spawn } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { z } from 'zod';
import { clusterDown, clusterStatus, clusterUp } from './cluster/cluster.ts';
import { ensurePackages } from './cluster/packages.ts';

const PARTS = ['unit', 'integration', 'e2e'] as const;
type Part = (typeof PARTS)[number];
type Options = Readonly<{
  parts: readonly Part[];
  keep: boolean;
  context: string | undefined;
  cluster: string;
  forVitest: readonly string[];
}>;
type Tally = Readonly<{
  part: Part;
  passed: number;
  failed: number;
  skipped: number;
  seconds: number;
  broken: boolean;
}>;

/** Ours, so that a run never touches a cluster that somebody works with; two runs at once take two names. */
const CLUSTER = 'test';
const reportSchema = z.object({
  numPassedTests: z.number(),
  numFailedTests: z.number(),
  numPendingTests: z.number(),
  numTotalTestSuites: z.number(),
  success: z.boolean(),
});

const stop = new AbortController();
for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, () => stop.abort(new Error(name)));
process.exitCode = await main(parseArguments(process.argv.slice(2)), stop.signal);

async function main(options: Options, signal: AbortSignal): Promise<number> {
  const needsCluster = options.parts.some((part) => part !== 'unit');
  const environment: Record<string, string> = {};
  let started = false;
  const tallies: Tally[] = [];
  try {
    if (needsCluster) {
      if (options.parts.includes('integration')) await ensurePackages(['postgresql'], say, signal);
      started = options.context === undefined && !(await isRunning(options.cluster, signal));
      const cluster = await clusterUp(
        { name: options.cluster, ...(options.context ? { context: options.context } : {}), onProgress: say },
        signal,
      );
      environment['LATHE_TEST_KUBECONFIG'] = cluster.kubeconfig;
      environment['LATHE_TEST_CLUSTER'] = options.cluster;
      if (options.context !== undefined) environment['LATHE_TEST_CONTEXT'] = options.context;
    }
    for (const part of options.parts) {
      signal.throwIfAborted();
      tallies.push(await run(part, options.forVitest, environment, signal));
    }
  } catch (error) {
    say(error instanceof Error ? error.message : String(error));
    return finish(tallies, true);
  } finally {
    // Not under the caller's signal: an interrupted run takes down what it started, too.
    if (started && !options.keep)
      await clusterDown({ name: options.cluster, onProgress: say }, AbortSignal.timeout(120_000));
  }
  return finish(tallies, false);
}

async function isRunning(name: string, signal: AbortSignal): Promise<boolean> {
  return (await clusterStatus({ name }, signal)).running;
}

function finish(tallies: readonly Tally[], interrupted: boolean): number {
  for (const t of tallies) {
    say(
      `${t.part}: ${t.passed} passed, ${t.failed} failed${t.skipped > 0 ? `, ${t.skipped} skipped` : ''} in ${t.seconds} s`,
    );
  }
  const passed = tallies.reduce((sum, t) => sum + t.passed, 0);
  // A part that could not run counts as one failure: a broken set-up must not look like success.
  const failed = tallies.reduce((sum, t) => sum + Math.max(t.failed, t.broken ? 1 : 0), 0) + (interrupted ? 1 : 0);
  process.stdout.write(`${passed} passed, ${failed} failed\n`);
  return failed === 0 ? 0 : 1;
}

async function run(
  part: Part,
  forVitest: readonly string[],
  environment: Record<string, string>,
  signal: AbortSignal,
): Promise<Tally> {
  const folder = await mkdtemp(join(tmpdir(), 'lathe-test-'));
  const report = join(folder, 'report.json');
  const began = performance.now();
  try {
    const code = await vitest(
      [
        'run',
        '--project',
        part,
        '--passWithNoTests',
        '--reporter=default',
        '--reporter=json',
        `--outputFile.json=${report}`,
        ...forVitest,
      ],
      environment,
      signal,
    );
    const seconds = Math.round((performance.now() - began) / 1000);
    const read = await readFile(report, 'utf8').catch(() => undefined);
    if (read === undefined) return { part, passed: 0, failed: 0, skipped: 0, seconds, broken: code !== 0 };
    const counted = reportSchema.parse(JSON.parse(read));
    return {
      part,
      passed: counted.numPassedTests,
      failed: counted.numFailedTests,
      skipped: counted.numPendingTests,
      seconds,
      broken: code !== 0,
    };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function vitest(args: readonly string[], environment: Record<string, string>, signal: AbortSignal): Promise<number> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, ['node_modules/vitest/vitest.mjs', ...args], {
      stdio: ['ignore', 'inherit', 'inherit'],
      env: { ...process.env, ...environment },
    });
    const stopChild = () => child.kill('SIGINT');
    signal.addEventListener('abort', stopChild, { once: true });
    child.once('error', reject);
    child.once('exit', (code) => {
      signal.removeEventListener('abort', stopChild);
      resolve(code ?? 1);
    });
  });
}

function parseArguments(args: readonly string[]): Options {
  const parts: Part[] = [];
  const forVitest: string[] = [];
  let keep = false;
  let context: string | undefined;
  let cluster = CLUSTER;
  for (let i = 0; i < args.length; i += 1) {
    const arg = args[i] ?? '';
    const part = PARTS.find((p) => p === arg);
    if (part !== undefined) parts.push(part);
    else if (arg === '--keep') keep = true;
    else if (arg === '--context') context = args[(i += 1)];
    else if (arg === '--cluster') cluster = args[(i += 1)] ?? CLUSTER;
    else forVitest.push(arg);
  }
  return { parts: parts.length === 0 ? PARTS : parts, keep, context, cluster, forVitest };
}

function say(line: string): void {
  process.stdout.write(`${line}\n`);
}
