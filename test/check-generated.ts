/** Generates again into the tree and says which committed files would change; restores nothing, so a run also mends. */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';

const GENERATED = ['proto/gen', 'crds/gen', 'charts/lathe/templates/crds', 'docs/reference'];

function digests(): Map<string, string> {
  const listed = execFileSync(
    'git',
    ['ls-files', '-z', '--cached', '--others', '--exclude-standard', '--', ...GENERATED],
    {
      encoding: 'utf8',
    },
  );
  const files = listed.split('\0').filter((file) => file !== '');
  return new Map(
    files.map((file) => {
      try {
        return [file, createHash('sha256').update(readFileSync(file)).digest('hex')];
      } catch {
        return [file, 'absent'];
      }
    }),
  );
}

const before = digests();
execFileSync('npm', ['run', '--silent', 'generate'], { stdio: ['ignore', 'ignore', 'inherit'] });
const after = digests();
const stale = [...new Set([...before.keys(), ...after.keys()])].filter((file) => before.get(file) !== after.get(file));
for (const file of stale) process.stdout.write(`stale: ${file}\n`);
process.exitCode = stale.length === 0 ? 0 : 1;
