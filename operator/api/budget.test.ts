import { expect, test } from 'vitest';
import { TransientError } from '../errors.ts';
import { createBudget } from './budget.ts';

const { signal } = new AbortController();
/** Whether it is there already. */
async function isSettled(promise: Promise<unknown>): Promise<boolean> {
  const not = Symbol('not yet');
  return (await Promise.race([promise, new Promise((resolve) => setImmediate(resolve, not))])) !== not;
}

test('what does not fit waits its turn, and a small one does not overtake it', async () => {
  const budget = createBudget({ bytes: 10, waitMs: 60_000 });
  const release = await budget.take(8, signal);
  const [large, small] = [budget.take(5, signal), budget.take(1, signal)];
  expect([await isSettled(large), await isSettled(small)]).toEqual([false, false]);
  release();
  release();
  expect([await isSettled(large), await isSettled(small)]).toEqual([true, true]);
  expect(await isSettled(budget.take(5, signal))).toBe(false);
});

test('who leaves makes room for those behind', async () => {
  const budget = createBudget({ bytes: 10, waitMs: 60_000 });
  await budget.take(8, signal);
  const leaves = new AbortController();
  const large = budget.take(5, leaves.signal);
  const small = budget.take(2, signal);
  leaves.abort(new Error('gone'));
  await expect(large).rejects.toThrow('gone');
  expect(await isSettled(small)).toBe(true);
});

test('who waits too long is told to come back', async () => {
  const budget = createBudget({ bytes: 10, waitMs: 10 });
  await budget.take(10, signal);
  await expect(budget.take(1, signal)).rejects.toThrow(TransientError);
});

test('what is larger than all of it has it alone', async () => {
  const budget = createBudget({ bytes: 10, waitMs: 60_000 });
  const release = await budget.take(100, signal);
  const next = budget.take(1, signal);
  expect(await isSettled(next)).toBe(false);
  release();
  expect(await isSettled(next)).toBe(true);
});
