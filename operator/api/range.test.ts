import { expect, test } from 'vitest';
import { namesEtag, parseRange } from './range.ts';

test.for<[header: string | undefined, size: number, is: ReturnType<typeof parseRange>]>([
  [undefined, 10, undefined],
  ['bytes=0-0', 10, { from: 0, to: 1 }],
  ['bytes=2-5', 10, { from: 2, to: 6 }],
  ['bytes=2-', 10, { from: 2, to: 10 }],
  ['bytes=2-99999999999999999999', 10, { from: 2, to: 10 }],
  ['bytes=-3', 10, { from: 7, to: 10 }],
  ['bytes=-30', 10, { from: 0, to: 10 }],
  ['bytes=10-', 10, 'unsatisfiable'],
  ['bytes=-0', 10, 'unsatisfiable'],
  ['bytes=0-', 0, 'unsatisfiable'],
  ['bytes=-1', 0, 'unsatisfiable'],
  ['bytes=5-2', 10, undefined],
  ['bytes=-', 10, undefined],
  ['bytes=0-1,3-4', 10, undefined],
  ['lines=0-1', 10, undefined],
  ['bytes=1e1-', 10, undefined],
])('Range: %s of %i bytes', ([header, size, is]) => expect(parseRange(header, size)).toEqual(is));

test.for<[header: string | undefined, is: boolean]>([
  [undefined, false],
  ['"a"', true],
  ['"b"', false],
  ['"b" , "a"', true],
  ['W/"a"', true],
  ['*', true],
  ['a', false],
])('If-None-Match: %s', ([header, is]) => expect(namesEtag(header, '"a"')).toBe(is));
