/** Random trees, random operations, real guest and real Postgres: head + diff = tree, after every command. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { EFFECTIVE } from '../store/fixture.ts';
import { treeOfHead, treeOnDisk } from './tree.ts';
import { useSandboxes } from './world.ts';

const RUNS = 200;
const world = useSandboxes();

/**
 * Commands here are this machine's own processes and follow their links: none may lead out of the tree, and the absolute
 * one to where nobody can write.
 */
const TARGETS = ['a', 'a/b', './b', 'nowhere', '/proc/none/x'] as const;

const name = fc.constantFrom('a', 'b', 'A', 'c d', '-n', '.x', 'é', 'e\u0301', '📄', 'new\nline', "it's", 'a\\b', '*');
const path = fc.array(name, { minLength: 1, maxLength: 4 }).map((names) => names.join('/'));
const content = fc.oneof(
  fc.string({ maxLength: 20, unit: 'grapheme' }).map((text) => text.replaceAll('\0', '')),
  // Above what is told inline, and above a frame.
  fc.constantFrom('x'.repeat(20_000), 'y'.repeat(60_000)),
);
type Op = readonly string[];
const op: fc.Arbitrary<Op> = fc.oneof(
  { weight: 5, arbitrary: fc.tuple(path, content).map(([p, c]) => ['write', p, c]) },
  { weight: 2, arbitrary: fc.tuple(path, content).map(([p, c]) => ['append', p, c]) },
  { weight: 3, arbitrary: path.map((p) => ['remove', p]) },
  { weight: 2, arbitrary: path.map((p) => ['folder', p]) },
  { weight: 3, arbitrary: fc.tuple(path, path).map(([p, q]) => ['move', p, q]) },
  { weight: 1, arbitrary: fc.tuple(path, path).map(([p, q]) => ['copy', p, q]) },
  { weight: 1, arbitrary: fc.tuple(path, path).map(([p, q]) => ['same', p, q]) },
  {
    weight: 2,
    arbitrary: fc.tuple(path, fc.constantFrom(...TARGETS)).map(([p, t]) => ['link', p, t]),
  },
  {
    weight: 2,
    arbitrary: fc.tuple(path, fc.constantFrom('+x', '-x', 'a-w', 'u+w', '0555')).map(([p, m]) => ['mode', p, m]),
  },
  { weight: 1, arbitrary: path.map((p) => ['touch', p]) },
  { weight: 1, arbitrary: path.map((p) => ['zeros', p]) },
);

function shell([what = '', p = '', q = '']: Op): string {
  const at = quoted(`./${p}`);
  const to = quoted(`./${q}`);
  const folder = quoted(`./${p.slice(0, Math.max(0, p.lastIndexOf('/')))}`);
  switch (what) {
    case 'write':
      return `{ mkdir -p -- ${folder}; printf %s ${quoted(q)} > ${at}; }`;
    case 'append':
      return `printf %s ${quoted(q)} >> ${at}`;
    case 'remove':
      return `rm -rf -- ${at}`;
    case 'folder':
      return `mkdir -p -- ${at}`;
    case 'move':
      return `mv -f -T -- ${at} ${to}`;
    case 'copy':
      return `cp -a -T -- ${at} ${to}`;
    case 'same':
      return `ln -f -- ${at} ${to}`;
    case 'link':
      return `ln -sfn -- ${quoted(q)} ${at}`;
    case 'mode':
      return `chmod ${q} -- ${at}`;
    case 'touch':
      return `touch -h -- ${at}`;
    case 'zeros':
      return `truncate -s 300000 -- ${at}`;
    default:
      throw new Error(`no operation ${what}`);
  }
}

test('head + diff = tree, whatever commands do', async () => {
  const workspace = await world.workspace({
    effective: { files: { ...EFFECTIVE.files, deletions: { ratio: 100, atLeast: 1_000_000 } } },
  });
  const owned = await world.own(workspace);
  const root = join(world.folder, workspace.id, 'workspace');
  let runs = 0;
  let versions = 0;
  await fc.assert(
    fc.asyncProperty(
      fc.array(op, { minLength: 1, maxLength: 12 }),
      fc.oneof(
        { weight: 12, arbitrary: fc.constant('') },
        { weight: 1, arbitrary: path.map((p) => p.split('/')[0] ?? 'a') },
      ),
      async (ops, foreign) => {
        runs += 1;
        if (foreign !== '') {
          // The work container is another one, and somebody wrote to the volume meanwhile: the head wins.
          const { guest } = world.provider.sandboxes.get(workspace.id) ?? {};
          guest?.kill('SIGKILL');
          await expect
            .poll(() => world.replica.meeting(workspace.id).session?.guestConnected() ?? false, { timeout: 10_000 })
            .toBe(false);
          try {
            writeFileSync(join(root, foreign), 'foreign');
          } catch {
            // A folder.
          }
          world.provider.restart(workspace.id, 'guest');
        }
        const result = await world.run(owned, ops.map(shell).join(' 2>/dev/null\n') + ' 2>/dev/null\ntrue');
        expect(result).toMatchObject({ state: 'done', exitCode: 0, refused: [] });
        if (result.toVersion !== result.fromVersion) versions += 1;
        expect(await treeOfHead(world.store, workspace.id)).toEqual(treeOnDisk(root));
      },
    ),
    { numRuns: RUNS, endOnFailure: true },
  );
  process.stdout.write(`head + diff = tree: ${runs} runs, ${versions} versions\n`);
  expect(runs).toBeGreaterThanOrEqual(RUNS);
}, 180_000);

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
