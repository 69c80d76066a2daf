import { expect, test } from 'vitest';
import { parseDuration, parseQuantity } from './quantity.ts';

test.for<[string, number | undefined]>([
  ['1', 1],
  ['500m', 0.5],
  ['64Mi', 67_108_864],
  ['1.5Gi', 1_610_612_736],
  ['2k', 2_000],
  ['', undefined],
  ['5x', undefined],
  ['-1', undefined],
  ['1 Gi', undefined],
])('the quantity %j is %j', ([text, value]) => expect(parseQuantity(text)).toBe(value));

test.for<[string, number | undefined]>([
  ['120s', 120_000],
  ['1h30m', 5_400_000],
  ['250ms', 250],
  ['5', undefined],
  ['1d', undefined],
])('the duration %j is %j ms', ([text, ms]) => expect(parseDuration(text)).toBe(ms));
