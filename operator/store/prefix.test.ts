import fc from 'fast-check';
import { expect, test } from 'vitest';
import { endOfPrefix } from './prefix.ts';

test.for<[prefix: string, end: string | undefined]>([
  ['/', '0'],
  ['/src/', '/src0'],
  ['/é', '/ê'],
  ['\u{d7ff}', '\u{e000}'],
  ['a\u{10ffff}', 'b'],
  ['\u{10ffff}', undefined],
  ['', undefined],
])('after all that begin with %j comes %j', ([prefix, end]) => expect(endOfPrefix(prefix)).toBe(end));

test('whatever begins with it is below its end, whatever does not is not between them, in the order of bytes', () => {
  const compare = (a: string, b: string) => Buffer.compare(Buffer.from(a), Buffer.from(b));
  const text = fc.string({ unit: 'binary', maxLength: 6 }).filter((t) => t.isWellFormed());
  fc.assert(
    fc.property(text, text, (prefix, other) => {
      const end = endOfPrefix(prefix);
      const isWithin = (t: string) => compare(t, prefix) >= 0 && (end === undefined || compare(t, end) < 0);
      expect(isWithin(`${prefix}${other}`)).toBe(true);
      if (!other.startsWith(prefix)) expect(isWithin(other)).toBe(false);
    }),
  );
});
