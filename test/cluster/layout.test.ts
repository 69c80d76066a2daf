import { expect, test } from 'vitest';
import { cacheRoot, layoutOf, SLOTS } from './layout.ts';

test('two clusters share no path, no address and no link', () => {
  const values = (name: string, slot: number) =>
    Object.entries(layoutOf(name, slot))
      .filter(([key]) => key !== 'slot')
      .map(([, value]) => value);
  const a = new Set(values('lathe', 0));
  expect(values('test', 1).filter((value) => a.has(value))).toEqual([]);
});

test('every slot has addresses that exist, and link names that fit the kernel', () => {
  const last = layoutOf('a', SLOTS - 1);
  expect(last.nodeAddress).toBe('10.211.0.1');
  expect(last.hostLink.length).toBeLessThanOrEqual(15);
});

test.for([[''], ['UPPER'], ['a/b'], ['-a'], ['a'.repeat(21)], ['..']])('the name %j is refused', ([name]) => {
  expect(() => layoutOf(name ?? '', 0)).toThrow(/cluster name/);
});

test('the cache is where LATHE_CACHE says, else below XDG_CACHE_HOME', () => {
  expect(cacheRoot({ LATHE_CACHE: '/c' })).toBe('/c');
  expect(cacheRoot({ XDG_CACHE_HOME: '/x' })).toBe('/x/lathe');
});
