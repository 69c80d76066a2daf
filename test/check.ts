/** `npm run check`: everything that can be said of the source without running it. All checks run, then the verdict. */
import { spawnSync } from 'node:child_process';

type Check = Readonly<{ name: string; command: readonly [string, ...string[]]; mend?: string }>;

const CHECKS: readonly Check[] = [
  { name: 'types', command: ['tsc', '--noEmit'] },
  { name: 'lint', command: ['oxlint', '--deny-warnings'], mend: 'npx oxlint --fix mends some' },
  { name: 'format', command: ['oxfmt', '--check', '.'], mend: 'npm run format' },
  { name: 'protocol', command: ['buf', 'lint'] },
  {
    name: 'generated files',
    command: ['node', 'test/check-generated.ts'],
    mend: 'npm run generate, and commit what it changes',
  },
  { name: 'unused files and dependencies', command: ['knip', '--no-progress'] },
];

let failed = 0;
for (const { name, command, mend } of CHECKS) {
  const started = performance.now();
  const [program, ...args] = command;
  // npm puts node_modules/.bin first in PATH, so these are the versions of package-lock.json.
  const run = spawnSync(program, args, { encoding: 'utf8', maxBuffer: 64 << 20 });
  const ok = run.status === 0;
  if (!ok) failed += 1;
  process.stdout.write(
    `${ok ? 'ok    ' : 'FAILED'} ${name} (${((performance.now() - started) / 1000).toFixed(1)} s)\n`,
  );
  if (!ok) {
    process.stdout.write(`${run.stdout ?? ''}${run.stderr ?? ''}${run.error?.message ?? ''}\n`);
    if (mend !== undefined) process.stdout.write(`  next: ${mend}\n`);
  }
}
process.exitCode = failed === 0 ? 0 : 1;
