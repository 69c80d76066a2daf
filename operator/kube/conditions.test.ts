import { expect, test } from 'vitest';
import { setConditions } from './conditions.ts';

const ready = { type: 'Ready', status: 'True', reason: 'R', message: 'm' } as const;
const t1 = new Date('2026-01-01T00:00:01.500Z');
const t2 = new Date('2026-01-01T00:00:02Z');

test('K5: saying the same again gives the same array, so that nothing is written', () => {
  const before = setConditions([], [ready], t1);
  expect(setConditions(before, [ready], t2)).toBe(before);
});

test('the time moves with the status alone', () => {
  const before = setConditions([], [ready], t1);
  expect(setConditions(before, [{ ...ready, message: 'other' }], t2)[0]?.lastTransitionTime).toBe(
    '2026-01-01T00:00:01Z',
  );
  expect(setConditions(before, [{ ...ready, status: 'False' }], t2)[0]?.lastTransitionTime).toBe(
    '2026-01-01T00:00:02Z',
  );
});

test('conditions of others stay', () => {
  const theirs = { type: 'Theirs', status: 'True', reason: 'R', message: '', lastTransitionTime: 'x' } as const;
  expect(setConditions([theirs], [ready], t1).map((c) => c.type)).toEqual(['Theirs', 'Ready']);
});
