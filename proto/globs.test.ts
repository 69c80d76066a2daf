import { expect, test } from 'vitest';
import { compileGlobs } from './globs.ts';

test.for<[pattern: string, path: string, matches: boolean]>([
  ['**/node_modules/**', '/a/node_modules/b/c.js', true],
  ['**/node_modules/**', '/node_modules/', true],
  ['**/node_modules/**', '/node_modules_not/x', false],
  ['/src/*.ts', '/src/a.ts', true],
  ['/src/*.ts', '/src/b/a.ts', false],
  ['src/**', '/src/b/a.ts', true],
  ['src/**', '/other/src/a', false],
  ['**/*.md', '/README.md', true],
  ['a?c', '/abc', true],
  ['a?c', '/a/c', false],
  ['a.b', '/axb', false],
  ['(x)+', '/(x)+', true],
])('%s and %s: %s', ([pattern, path, matches]) => expect(compileGlobs([pattern])(path)).toBe(matches));

test('no pattern matches nothing', () => expect(compileGlobs([])('/a')).toBe(false));
