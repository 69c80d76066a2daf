import { describe, expect, test } from 'vitest';
import { TransientError } from '../errors.ts';
import type { Identity } from './authentication.ts';
import { bearerAuthenticator } from './bearer.ts';

describe('a bearer token', () => {
  const ada: Identity = { user: 'ada', groups: [], extra: {} };
  function reviewing(answer: () => Promise<Identity | undefined>) {
    const state = { now: 0, asked: 0 };
    const authenticate = bearerAuthenticator(
      () => {
        state.asked += 1;
        return answer();
      },
      () => state.now,
    );
    return { state, authenticate: (token: string, source = '10.0.0.1') => authenticate(`Bearer ${token}`, source) };
  }

  test('is asked about once in 10 s, also by many at once', async () => {
    const { state, authenticate } = reviewing(async () => ada);
    expect(await Promise.all([1, 2, 3].map(() => authenticate('t')))).toEqual([ada, ada, ada]);
    expect(state.asked).toBe(1);
    state.now = 10_000;
    await authenticate('t');
    expect(state.asked).toBe(2);
  });

  test('an API server that is away is no refusal, and is not remembered', async () => {
    let away = true;
    const { authenticate } = reviewing(async () => {
      if (away) throw new TransientError('ServiceUnavailable', 'away');
      return ada;
    });
    await expect(authenticate('t')).rejects.toThrow('away');
    away = false;
    expect(await authenticate('t')).toEqual(ada);
  });

  test('one source that guesses is slowed down; others, and what is known, are not', async () => {
    const { state, authenticate } = reviewing(async () => undefined);
    const guess = async (from: string) => {
      for (let i = 0; i < 1_000; i += 1) await authenticate(`guess-${i}`, from);
    };
    await authenticate('known', '10.0.0.9');
    await expect(guess('10.0.0.9')).rejects.toThrow(TransientError);
    expect(state.asked).toBeLessThan(200);
    expect(await authenticate('known', '10.0.0.9')).toBeUndefined();
    expect(await authenticate('other', '10.0.0.2')).toBeUndefined();
    state.now = 10_000;
    expect(await authenticate('later', '10.0.0.9')).toBeUndefined();
  });

  test('what is no token is not asked about', async () => {
    const { state, authenticate } = reviewing(async () => ada);
    for (const text of ['', 'a b', 'x'.repeat(8_193)]) expect(await authenticate(text)).toBeUndefined();
    expect(state.asked).toBe(0);
  });
});
