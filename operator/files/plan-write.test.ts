import fc from 'fast-check';
import { expect, test } from 'vitest';
import { above } from '../store/files.ts';
import type { FileEntry } from '../store/rows.ts';
import type { Ground } from '../store/workspace-store.ts';
import { planWrite, type Write } from './plan-write.ts';

const HASH = { a: Buffer.alloc(32, 1), b: Buffer.alloc(32, 2) };
type Tree = Readonly<Record<string, 'file' | 'link' | 'folder'>>;

function entriesOf(tree: Tree): readonly FileEntry[] {
  return Object.entries(tree).map(([path, what]) => ({
    path,
    kind: what === 'file' ? 'regular' : what === 'link' ? 'symlink' : 'directory',
    executable: false,
    size: 1n,
    sha256: what === 'file' ? HASH.a : null,
    target: what === 'link' ? '/etc' : null,
    version: 7n,
  }));
}
function groundOf(all: readonly FileEntry[], writes: readonly Write[]): Ground {
  const asked = new Set(writes.flatMap(({ path }) => [path, ...above(path)]));
  return {
    head: 7n,
    files: BigInt(all.length),
    bytes: BigInt(all.length),
    entries: new Map(all.filter((e) => asked.has(e.path)).map((e) => [e.path, e])),
    folders: new Set(writes.map((w) => w.path).filter((path) => all.some((e) => e.path.startsWith(`${path}/`)))),
  };
}
function plan(all: readonly FileEntry[], writes: readonly Write[]) {
  const below = new Map(
    writes.filter((w) => w.recursive === true).map((w) => [w.path, all.filter((e) => e.path.startsWith(`${w.path}/`))]),
  );
  return planWrite(writes, groundOf(all, writes), below);
}
const put = (path: string, more: Partial<Write> = {}): Write => ({
  path,
  kind: 'regular',
  size: 1,
  sha256: HASH.b,
  ...more,
});
const del = (path: string, more: Partial<Write> = {}): Write => ({ path, kind: 'deleted', size: 0, ...more });
const outcome = (tree: Tree, writes: readonly Write[]) => {
  const { changes, refused, perhapsEmpty } = plan(entriesOf(tree), writes);
  return [
    changes.map((c) => `${c.op === 'put' ? c.kind[0] : '-'} ${c.path} ${c.base}`),
    refused.map((r) => r.path),
    perhapsEmpty,
  ];
};

test.for<
  [situation: string, tree: Tree, writes: Write[], changes: string[], refused: string[], perhapsEmpty: string[]]
>([
  ['a new file', {}, [put('/a')], ['r /a 0'], [], []],
  ['a file over a file', { '/a': 'file' }, [put('/a')], ['r /a 7'], [], []],
  ['what is so already changes nothing', { '/a': 'file' }, [put('/a', { sha256: HASH.a })], [], [], []],
  ['of a path that comes twice the last counts', {}, [put('/a'), del('/a')], [], [], []],
  ['F4: below a link out of the workspace nothing is written', { '/out': 'link' }, [put('/out/x')], [], ['/out/x'], []],
  ['F12: a file stands where a folder is needed', { '/a': 'file' }, [put('/a/b')], [], ['/a/b'], []],
  ['F12: a folder stands where a file is wanted', { '/a/b': 'file' }, [put('/a')], [], ['/a'], []],
  ['F12: the file is removed first', { '/a': 'file' }, [del('/a'), put('/a/b')], ['- /a 7', 'r /a/b 0'], [], []],
  [
    'F12: the folder is removed first',
    { '/a/b': 'file', '/a/c/d': 'file' },
    [del('/a', { recursive: true }), put('/a')],
    ['- /a/b 7', '- /a/c/d 7', 'r /a 0'],
    [],
    [],
  ],
  ['an empty folder gets a file', { '/a': 'folder' }, [put('/a/b')], ['- /a 7', 'r /a/b 0'], [], []],
  ['a folder that is there', { '/a/b': 'file' }, [put('/a', { kind: 'directory' })], [], [], []],
  ['the last file of a folder goes', { '/a/b': 'file' }, [del('/a/b')], ['- /a/b 7'], [], ['/a']],
  ['a folder is not removed by its name alone', { '/a/b': 'file' }, [del('/a')], [], ['/a'], []],
  [
    'a folder below a folder goes',
    { '/a/b/c': 'file' },
    [del('/a/b', { recursive: true })],
    ['- /a/b/c 7'],
    [],
    ['/a'],
  ],
  ['what is not there is gone already', {}, [del('/a')], [], [], []],
])('%s', ([, tree, writes, ...expected]) => expect(outcome(tree, writes)).toEqual(expected));

test.for<[situation: string, tree: Tree, write: Write, reason: string]>([
  ['If-Match of another content', { '/a': 'file' }, put('/a', { ifMatch: HASH.b }), 'PreconditionFailed'],
  ['If-Match where nothing is', {}, put('/a', { ifMatch: HASH.b }), 'PreconditionFailed'],
  ['If-None-Match where something is', { '/a': 'link' }, put('/a', { ifMatch: 'absent' }), 'PreconditionFailed'],
  ['a deletion of what is not there', {}, del('/a', { mustExist: true }), 'NotFound'],
])('%s: nothing is written', ([, tree, write, reason]) =>
  expect(() => plan(entriesOf(tree), [put('/z'), write])).toThrow(expect.objectContaining({ reason })),
);

test('F12: whatever is written in whatever order, no entry is ever below a file or a link', () => {
  const path = fc.array(fc.constantFrom('a', 'b', 'c'), { minLength: 1, maxLength: 3 }).map((s) => `/${s.join('/')}`);
  const write = fc.record({
    path,
    kind: fc.constantFrom<Write['kind']>('regular', 'symlink', 'directory', 'deleted'),
    recursive: fc.boolean(),
  });
  fc.assert(
    fc.property(fc.array(fc.array(write, { maxLength: 6 }), { maxLength: 5 }), (rounds) => {
      let tree = new Map<string, FileEntry>();
      for (const round of rounds) {
        const writes = round.map((w) => ({
          ...w,
          size: 1,
          recursive: w.kind === 'deleted' && w.recursive,
          ...(w.kind === 'regular' ? { sha256: HASH.b } : {}),
          ...(w.kind === 'symlink' ? { target: 'x' } : {}),
        }));
        const next = new Map(tree);
        for (const change of plan([...tree.values()], writes).changes) {
          expect(change.base).toBe(tree.get(change.path)?.version ?? 0n);
          if (change.op === 'delete') next.delete(change.path);
          else
            next.set(change.path, {
              ...{ path: change.path, kind: change.kind, executable: false, size: 1n, version: 7n },
              ...{ sha256: change.sha256 ?? null, target: change.target ?? null },
            });
        }
        tree = next;
        for (const entry of tree.keys())
          for (const folder of above(entry)) expect([entry, tree.get(folder)?.kind]).toEqual([entry, undefined]);
      }
    }),
    { numRuns: 2_000 },
  );
});
