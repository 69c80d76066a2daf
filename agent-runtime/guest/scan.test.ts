import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { compileWalk } from '../../proto/globs.ts';
import { fileSystemNowMs } from './file-system-clock.ts';
import { Index } from './index.ts';
import { isSettled, scan, TreeTooLarge, type ScanOptions } from './scan.ts';

let root: string;
beforeEach(() => void (root = mkdtempSync(join(tmpdir(), 'lathe-scan-'))));
afterEach(() => rmSync(root, { recursive: true }));

const options: ScanOptions = {
  ignored: compileWalk(['**/node_modules/**', '/build/*.o']),
  maxEntries: 1_000,
  maxFileBytes: 1_000_000n,
  maxChangedBytes: 1_000_000,
  quietUntilMs: Number.POSITIVE_INFINITY,
};
const look = (before = new Index(), more: Partial<ScanOptions> = {}) => scan(root, before, { ...options, ...more });
const at = (path: string) => join(root, path);

test('what is new, changed, gone, renamed, of another mode or kind is told; folders in which nothing changed are shared', () => {
  for (const folder of ['a/b', 'still', 'empty', 'node_modules/x', 'build']) mkdirSync(at(folder), { recursive: true });
  for (const path of ['a/one', 'a/b/two', 'a/b/three', 'still/here', 'node_modules/x/y', 'build/a.o', 'build/a.c'])
    writeFileSync(at(path), path);
  symlinkSync('one', at('a/link'));
  const first = look();
  expect([...first.changed].toSorted()).toEqual([
    '/a/b/three',
    '/a/b/two',
    '/a/link',
    '/a/one',
    '/build/a.c',
    '/empty',
    '/still/here',
  ]);
  expect(first.index.size).toBe(7);
  writeFileSync(at('a/b/two'), 'TWO');
  chmodSync(at('a/one'), 0o755);
  renameSync(at('a/b/three'), at('a/b/four'));
  rmSync(at('a/link'));
  mkdirSync(at('a/link'));
  writeFileSync(at('empty/not'), '');
  const second = look(first.index);
  expect([...second.changed].toSorted()).toEqual(['/a/b/four', '/a/b/two', '/a/link', '/a/one', '/empty/not']);
  expect([...second.deleted].toSorted()).toEqual(['/a/b/three', '/empty']);
  expect(second.index.folders.get('/still')).toBe(first.index.folders.get('/still'));
  expect(second.index.size).toBe(7);
  rmSync(at('a'), { recursive: true });
  const third = look(second.index);
  expect([...third.deleted].toSorted()).toEqual(['/a/b/four', '/a/b/two', '/a/link', '/a/one']);
  expect(third.changed).toEqual([]);
});

describe('F9: what may have changed without a trace in its times is read again', () => {
  /** The same size, times and inode as before, and another content: what a write within one tick looks like. */
  function changedUnseen(when: number): Index {
    writeFileSync(at('f'), 'aaaa');
    utimesSync(at('f'), when / 1_000, when / 1_000);
    const { index } = look();
    const entry = index.get('/f');
    if (entry === undefined) throw new Error('no entry');
    index.set('/f', { ...entry, sha256: 'x'.repeat(32) });
    return index;
  }

  test('written just before the command started: read', () => {
    const index = changedUnseen(Date.now());
    expect(look(index, { quietUntilMs: fileSystemNowMs(root) }).changed).toEqual(['/f']);
  });

  test('at rest for long when the command started: not read', () => {
    const index = changedUnseen(Date.now());
    expect(look(index, { quietUntilMs: fileSystemNowMs(root) + 5_000 }).changed).toEqual([]);
  });

  test.for<[what: string, ctimeMs: number, startedMs: number, settled: boolean]>([
    ['fine times, just before', 1_000_005.25, 1_000_010, false],
    ['fine times, three ticks before', 1_000_005.25, 1_000_035.5, true],
    ['whole seconds, in the next second', 1_000_000, 1_001_500, false],
    ['whole seconds, over two seconds before', 1_000_000, 1_002_500, true],
  ])('%s', ([, ctimeMs, startedMs, settled]) => expect(isSettled({ ctimeMs }, startedMs)).toBe(settled));
});

describe('F5: no more is held than may be told of', () => {
  test('a file over the limit is not read; one that was there before and only touched is', () => {
    writeFileSync(at('huge'), '');
    truncateSync(at('huge'), 2 ** 40);
    expect(look().changed).toEqual(['/huge']);
    writeFileSync(at('huge'), 'x'.repeat(2_000));
    const { index } = look();
    utimesSync(at('huge'), 1, 1);
    expect(look(index, { maxFileBytes: 10n }).changed).toEqual([]);
  });

  test('too many entries, too deep, too many changes: said with the limit and the place', () => {
    mkdirSync(at('d/e'), { recursive: true });
    for (let i = 0; i < 50; i += 1) writeFileSync(at(`d/e/f${i}`), '');
    expect(() => look(new Index(), { maxEntries: 51 })).toThrow(/more than 51 entries, counted up to .*\/d\/e/);
    expect(() => look(new Index(), { maxEntries: 52 })).not.toThrow();
    expect(() => look(new Index(), { maxChangedBytes: 1_000 })).toThrow(TreeTooLarge);
    let deep = root;
    for (let i = 0; i < 520; i += 1) deep = join(deep, 'd');
    mkdirSync(deep, { recursive: true });
    expect(() => look()).toThrow(/nested deeper than 512/);
  });
});

test('what could not be looked into counts as unchanged', () => {
  mkdirSync(at('d'));
  writeFileSync(at('d/x'), 'x');
  writeFileSync(at('d/broken\\xff'), 'x');
  const { index } = look();
  expect(look(index).deleted).toEqual([]);
  expect(process.cwd()).toBe('/');
});
