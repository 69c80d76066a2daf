import fc from 'fast-check';
import { expect, test } from 'vitest';
import { escapeName, normalisePath } from './paths.ts';

test.for<[input: string, path: string]>([
  ['src/a.js', '/src/a.js'],
  ['/src/a.js', '/src/a.js'],
  ['/workspace/src/a.js', '/src/a.js'],
  ['workspace/a', '/workspace/a'],
  ['//a', '/a'],
  ['/./a', '/a'],
  ['a/', '/a'],
  ['%2e%2e', '/%2e%2e'],
  ['a\\b', '/a\\b'],
  ['...', '/...'],
  ['naïve 📄', '/naïve 📄'],
])('F11: %j is the file %j', ([input, path]) => expect(normalisePath(input)).toEqual({ path }));

test.for<[input: string, why: string]>([
  ['/workspace/../../../etc/x', '..'],
  ['a/../b', '..'],
  ['..', '..'],
  ['', 'names no file'],
  ['/', 'names no file'],
  ['/workspace', 'names no file'],
  ['a\0b', 'NUL'],
  ['x'.repeat(256), 'segment'],
  ['x/'.repeat(3_000), 'longer'],
  ['\ud800', 'UTF-8'],
])('F11: %j is refused', ([input, why]) => {
  const result = normalisePath(input);
  expect('refused' in result && result.refused).toContain(why);
});

test('F3: bytes that are not UTF-8 are refused with their name escaped', () => {
  expect(normalisePath(Buffer.from([0x61, 0xff, 0x62]))).toEqual({
    refused: expect.stringMatching(/^path "a\\u\{fffd\}b" is not UTF-8$/),
  });
});

test('FW27: whatever comes in, what comes out is absolute, inside, stable and never from a parent', () => {
  const piece = fc.constantFrom('..', '.', '', 'a', 'workspace', '%2e', '\\', 'é');
  fc.assert(
    fc.property(
      fc.oneof(
        fc.string({ unit: 'binary' }),
        fc.array(piece).map((p) => p.join('/')),
      ),
      (input) => {
        const result = normalisePath(input);
        if ('refused' in result) return true;
        const segments = result.path.split('/').slice(1);
        return (
          !input.split('/').includes('..') &&
          result.path.startsWith('/') &&
          segments.every((s) => s !== '' && s !== '.' && s !== '..') &&
          JSON.stringify(normalisePath(`/workspace${result.path}`)) === JSON.stringify(result)
        );
      },
    ),
    { numRuns: 2_000 },
  );
});

test('S7: control, bidi and zero-width characters of a name are spelled out', () => {
  expect(escapeName('a\u001b[2Jb\u202ec\u200bd"')).toBe('"a\\u{1b}[2Jb\\u{202e}c\\u{200b}d\\u{22}"');
  // A Hangul filler looks like nothing at all; half a pair is no character.
  expect(escapeName('a\u3164b\ud800')).toBe('"a\\u{3164}b\\u{d800}"');
});
