import { expect, test } from 'vitest';
import { figures, measure, percentiles } from './measure.ts';

test('percentiles are values that were measured', () => {
  const values = Array.from({ length: 100 }, (_, i) => i + 1);
  expect(percentiles(values)).toEqual({ p50: 50, p95: 95, p99: 99 });
  expect(percentiles([7])).toEqual({ p50: 7, p95: 7, p99: 7 });
});

test('a subject twice as fast has ratio 2', () => {
  expect(figures([5, 5, 5], [10, 10, 10], 'reference').ratio).toEqual({ p50: 2, p95: 2 });
});

test('both sides run equally often, neither always first, and the untimed part is not counted', async () => {
  let clock = 0;
  const order: string[] = [];
  const side = (name: string, takes: number) => ({
    name,
    before: async () => void (clock += 1_000),
    sample: async (i: number) => {
      order.push(`${name}${i}`);
      clock += takes;
    },
  });
  const seen = await measure(
    { subject: side('s', 2), reference: side('r', 6), samples: 2, warmUp: 1, now: () => clock },
    new AbortController().signal,
  );
  expect(order).toEqual(['s-1', 'r-1', 's0', 'r0', 'r1', 's1']);
  expect(seen).toEqual({
    subject: { p50: 2, p95: 2, p99: 2 },
    reference: { name: 'r', p50: 6, p95: 6, p99: 6 },
    ratio: { p50: 3, p95: 3 },
    samples: 2,
  });
});
