import { expect, test } from 'vitest';
import type { Change } from '../store/rows.ts';
import { runGuards, type Before, type Rules } from './guards.ts';

const rules: Rules = {
  ignored: [],
  maxFileSize: '10',
  maxTotalSize: '30',
  maxFiles: 5,
  deletions: { ratio: 50, atLeast: 3 },
};
const before: Before = { files: 4, bytes: 20, sizeOf: (path) => (/^\/old[1-4]$/.test(path) ? 5 : undefined) };
const put = (path: string, size = 1): Change => ({
  path,
  op: 'put',
  kind: 'regular',
  executable: false,
  size,
  base: 0n,
});
const del = (path: string): Change => ({ path, op: 'delete', base: 1n });

test.for<[situation: string, changes: Change[], rules: Partial<Rules>, commit: string[], refused: [string, string][]]>([
  ['an ordinary diff is committed', [put('/a'), del('/old1')], {}, ['/a', '/old1'], []],
  [
    'F11: a forged path that names a parent is refused',
    [put('/a/../b'), put('/c')],
    {},
    ['/c'],
    [['"/a/../b"', 'PathRefused']],
  ],
  ['F11: a forged relative path is refused', [put('etc/passwd')], {}, [], [['"etc/passwd"', 'PathRefused']]],
  ['F11: a forged path with doubled slashes is refused', [put('//a')], {}, [], [['"//a"', 'PathRefused']]],
  [
    'outside of what may be written',
    [put('/src/a'), put('/b')],
    { writable: ['/src/**'] },
    ['/src/a'],
    [['/b', 'ScopeRefused']],
  ],
  [
    'a deletion outside of what may be written',
    [del('/old1')],
    { writable: ['/src/**'] },
    [],
    [['/old1', 'ScopeRefused']],
  ],
  ['a file of exactly the limit', [put('/a', 10)], {}, ['/a'], []],
  ['a file over the limit, the rest goes on', [put('/a', 11), put('/b')], {}, ['/b'], [['/a', 'FileTooLarge']]],
  ['what still fits is taken', [put('/a', 8), put('/b', 8)], { maxFiles: 9 }, ['/a'], [['/b', 'WorkspaceFull']]],
  [
    'what is deleted makes room',
    [put('/a', 8), put('/b', 7), del('/old1')],
    { maxFiles: 9 },
    ['/a', '/b', '/old1'],
    [],
  ],
  ['a file that replaces a larger one always fits', [put('/old1', 4)], { maxTotalSize: '1' }, ['/old1'], []],
  ['one file too many', [put('/a'), put('/b')], {}, ['/a'], [['/b', 'TooManyFiles']]],
  ['half of the files may go', [del('/old1'), del('/old2')], {}, ['/old1', '/old2'], []],
  [
    'most of the files may not',
    [del('/old1'), del('/old2'), del('/old3'), put('/a')],
    {},
    ['/old1', '/old2', '/old3', '/a'],
    [],
  ],
  [
    'F8: most of the files may not go, what is written stays',
    [del('/old1'), del('/old2'), del('/old3'), del('/old4'), put('/a')],
    {},
    ['/a'],
    [
      ['/old1', 'DeletionsHeld'],
      ['/old2', 'DeletionsHeld'],
      ['/old3', 'DeletionsHeld'],
      ['/old4', 'DeletionsHeld'],
    ],
  ],
])('%s', ([, changes, more, commit, refused]) => {
  const verdict = runGuards(changes, before, { ...rules, ...more });
  expect(verdict.commit.map((c) => c.path)).toEqual(commit);
  expect(verdict.refused.map((r) => [r.path, r.reason])).toEqual(refused);
});

test('EX4: a refusal names limit, size and path', () => {
  expect(runGuards([put('/big', 11)], before, rules).refused[0]?.message).toBe(
    '"/big" has 11 bytes, files.maxFileSize is 10',
  );
});

test('F12: what may not be deleted keeps its place, and the loser is told who won', () => {
  const file = put('/old1/in');
  const gone = del('/old1');
  const roomy = { ...rules, maxFiles: 50 };
  const scoped = { ...roomy, writable: ['/old1/**', '/x'] };
  // `/old1/**` matches the folder itself too, so that only the other one is refused.
  expect(runGuards([gone, file], before, scoped).refused).toEqual([]);
  const verdict = runGuards([gone, file, put('/x', 1)], before, { ...roomy, writable: ['/old1/*', '/x'] });
  expect(verdict.commit.map((c) => c.path)).toEqual(['/x']);
  expect(verdict.refused).toMatchObject([
    { path: '/old1', reason: 'ScopeRefused' },
    { path: '/old1/in', reason: 'Conflict', message: expect.stringMatching(/place of .*\/old1.*stays/) },
  ]);
  const below = del('/old2/deep');
  expect(runGuards([below, put('/old2', 1)], before, { ...roomy, writable: ['/old2'] }).refused).toMatchObject([
    { path: '/old2/deep', reason: 'ScopeRefused' },
    { path: '/old2', reason: 'Conflict', message: expect.stringContaining('what is below') },
  ]);
});

test('names that a sandbox writes under are refused in the root', () => {
  expect(runGuards([put('/.lathe-tmp', 1), put('/a/.lathe-tmp', 1)], before, rules).refused).toMatchObject([
    { path: '/.lathe-tmp', reason: 'PathRefused' },
  ]);
});
