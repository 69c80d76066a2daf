import { expect, test } from 'vitest';
import { tokenReviewer, type ReviewToken } from './token-review.ts';

const good = { authenticated: true, audiences: ['lathe.dev'], podUid: 'pod' };

test.for<[situation: string, answer: Awaited<ReturnType<ReviewToken>>, podUid: string | undefined]>([
  ['a good token is its pod', good, 'pod'],
  ['S1: an expired or forged token is refused', { ...good, authenticated: false }, undefined],
  ['S1: a token of another audience is refused', { ...good, audiences: ['https://kubernetes.default.svc'] }, undefined],
  ['S1: a token that is bound to no pod is refused', { authenticated: true, audiences: ['lathe.dev'] }, undefined],
])('%s', async ([, answer, podUid]) => {
  expect((await tokenReviewer(async () => answer)('token'))?.podUid).toBe(podUid);
});

test('an answer is remembered for 30 s and no longer', async () => {
  let asked = 0;
  let now = 0;
  const authenticate = tokenReviewer(
    async () => {
      asked += 1;
      return good;
    },
    () => now,
  );
  await authenticate('t');
  now = 29_999;
  await authenticate('t');
  expect(asked).toBe(1);
  now = 30_000;
  await authenticate('t');
  expect(asked).toBe(2);
});

test('an API server that is away is no refusal', async () => {
  await expect(tokenReviewer(() => Promise.reject(new Error('away')))('t')).rejects.toThrow('away');
});
