import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { patchOf, type Side } from './patch.ts';

const file = (text: string): Side => ({ kind: 'regular', executable: false, content: Buffer.from(text) });
/** Lines that look alike nowhere. */
function unlike(seed: number, bytes: number): string {
  let text = '';
  for (let x = seed; text.length < bytes; x = (x * 48_271) % 2_147_483_647) text += `${x.toString(36)}\n`;
  return text;
}

/** What `patch -p1` makes of it. */
function applied(before: string, patch: string): string {
  const folder = mkdtempSync(join(tmpdir(), 'lathe-patch-'));
  try {
    writeFileSync(join(folder, 'x'), before);
    execFileSync('git', ['apply', '--unsafe-paths', `--directory=${folder}`, '-'], { input: patch, cwd: folder });
    return readFileSync(join(folder, 'x'), 'utf8');
  } finally {
    rmSync(folder, { recursive: true });
  }
}

test('two files of 1 MiB that have nothing in common are soon told apart, and the patch applies', () => {
  const [before, after] = [unlike(1, 1 << 20), `${unlike(2, 1 << 20)}no end of line`];
  const began = performance.now();
  const patch = patchOf('/x', file(before), file(after));
  // Without the bound it is minutes, not seconds.
  expect(performance.now() - began).toBeLessThan(5_000);
  expect(applied(before, patch)).toBe(after);
});

test.for<[situation: string, before: string, after: string]>([
  ['one line of many', unlike(3, 200_000), unlike(3, 200_000).replace('\n', '\nnew\n')],
  ['the end of the last line comes', 'a\nb', 'a\nb\n'],
  ['the end of the last line goes', 'a\nb\n', 'a\nb'],
  ['more lines than are compared, the last without an end', `${unlike(4, 60_000)}x`, unlike(5, 60_000)],
  ['everything goes', unlike(6, 60_000), ''],
])('%s: the patch applies', ([, before, after]) => {
  expect(applied(before, patchOf('/x', file(before), file(after)))).toBe(after);
});

test('names and contents that would deceive or break a line are quoted, as Git does', () => {
  const patch = patchOf('/a\u202etxt.exe\n', undefined, file('x\n'));
  expect(patch.split('\n')[0]).toBe(String.raw`diff --git "a/a\342\200\256txt.exe\012" "b/a\342\200\256txt.exe\012"`);
});
