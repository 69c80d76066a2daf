import fc from 'fast-check';
import { expect, test } from 'vitest';
import { compileGlobs } from './globs.ts';

test.for<[pattern: string, path: string, matches: boolean]>([
  ['**/node_modules/**', '/a/node_modules/b/c.js', true],
  ['**/node_modules/**', '/node_modules/', true],
  ['**/node_modules/**', '/node_modules', true],
  ['**/node_modules/**', '/node_modules_not/x', false],
  ['/src/*.ts', '/src/a.ts', true],
  ['/src/*.ts', '/src/b/a.ts', false],
  ['src/**', '/src/b/a.ts', true],
  ['src/**', '/src', true],
  ['src/**', '/other/src/a', false],
  ['src/*', '/src/', false],
  ['src/*', '/src/b/', true],
  ['build', '/build/', true],
  ['**/*.md', '/README.md', true],
  ['**', '/a/b', true],
  ['a/**/b', '/a/b', true],
  ['a/**/b', '/a/x/y/b', true],
  ['a/**/b', '/a/x/y/c', false],
  ['a/**b', '/a/x/b', false],
  ['a?c', '/abc', true],
  ['a?c', '/a📄c', true],
  ['a?c', '/a/c', false],
  ['a.b', '/axb', false],
  ['(x)+', '/(x)+', true],
  ['[ab]', '/a', false],
])('%s and %s: %s', ([pattern, path, matches]) => expect(compileGlobs([pattern])(path)).toBe(matches));

test('no pattern matches nothing', () => expect(compileGlobs([])('/a')).toBe(false));

test('any one of several is enough', () => {
  const matches = compileGlobs(['**/node_modules/**', '**/.venv/**', '*.log']);
  expect(['/a/.venv/x', '/b.log', '/a/b.log', '/src/a'].map((path) => matches(path))).toEqual([
    true,
    true,
    false,
    false,
  ]);
});

test('it answers as the plain definition does, for any pattern and path', () => {
  const piece = fc.constantFrom('a', 'b', '*', '?', '**', 'a*', '*b', 'a?b', 'ab');
  const name = fc.stringMatching(/^[ab]{1,4}$/);
  fc.assert(
    fc.property(
      fc.array(piece, { minLength: 1, maxLength: 5 }),
      fc.array(name, { minLength: 1, maxLength: 5 }),
      (p, n) => {
        expect(compileGlobs([p.join('/')])(`/${n.join('/')}`)).toBe(byDefinition(p, n));
      },
    ),
    { numRuns: 3_000 },
  );
});

test('S5: a pattern made to be slow is not', () => {
  const matches = compileGlobs([`${'a*'.repeat(60)}b`, `${'**/a/'.repeat(40)}b`]);
  const began = performance.now();
  expect(matches(`/${'a'.repeat(250)}`)).toBe(false);
  expect(matches(`/${'a/'.repeat(1_500)}c`)).toBe(false);
  expect(performance.now() - began).toBeLessThan(1_000);
});

function byDefinition([first, ...rest]: readonly string[], names: readonly string[]): boolean {
  if (first === undefined) return names.length === 0;
  if (first === '**')
    return byDefinition(rest, names) || (names.length > 0 && byDefinition([first, ...rest], names.slice(1)));
  const [name, ...others] = names;
  if (name === undefined) return false;
  const one = new RegExp(`^${first.replaceAll('*', '.*').replaceAll('?', '.')}$`);
  return one.test(name) && byDefinition(rest, others);
}
