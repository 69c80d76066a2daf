import { expect, test } from 'vitest';
import { PermanentError, TransientError } from '../errors.ts';
import { startQueue } from './queue.ts';

const ref = (name: string) => ({ name });

test('a key that is added many times while it waits is worked on once, and once more when it was added in flight', async () => {
  const stop = new AbortController();
  const gate = Promise.withResolvers<void>();
  const seen: string[] = [];
  const queue = startQueue(
    {
      concurrency: 2,
      reconcile: async ({ name }) => {
        seen.push(name);
        if (seen.length === 1) await gate.promise;
      },
    },
    stop.signal,
  );
  queue.add(ref('a'));
  for (let i = 0; i < 5; i += 1) queue.add(ref('a'));
  expect(seen).toEqual(['a']);
  gate.resolve();
  await expect.poll(() => seen).toEqual(['a', 'a']);
  stop.abort();
  await queue.done;
});

test('one key is never in flight twice', async () => {
  const stop = new AbortController();
  let running = 0;
  let most = 0;
  let done = 0;
  const queue = startQueue(
    {
      concurrency: 8,
      reconcile: async () => {
        running += 1;
        most = Math.max(most, running);
        await new Promise((resolve) => setImmediate(resolve));
        running -= 1;
        done += 1;
        if (done < 20) queue.add(ref('a'));
      },
    },
    stop.signal,
  );
  queue.add(ref('a'));
  await expect.poll(() => done).toBe(20);
  expect(most).toBe(1);
  stop.abort();
});

test('a failure is tried again with growing waits, a permanent one only when somebody changes something', async () => {
  const stop = new AbortController();
  const tries: Record<string, number> = {};
  const queue = startQueue(
    {
      concurrency: 1,
      baseDelayMs: 1,
      maxDelayMs: 2,
      reconcile: async ({ name }) => {
        tries[name] = (tries[name] ?? 0) + 1;
        if (name === 'heals' && tries[name] < 4) throw new TransientError('Unknown', 'not yet');
        if (name === 'never') throw new PermanentError('Invalid', 'never');
      },
    },
    stop.signal,
  );
  queue.add(ref('never'));
  queue.add(ref('heals'));
  await expect.poll(() => tries['heals']).toBe(4);
  expect(tries['never']).toBe(1);
  queue.add(ref('never'));
  await expect.poll(() => tries['never']).toBe(2);
  expect(queue.stats().failures).toBe(5);
  stop.abort();
});

test('the low lane waits for the high one, and does not starve', async () => {
  const stop = new AbortController();
  const order: string[] = [];
  const gate = Promise.withResolvers<void>();
  const queue = startQueue(
    {
      concurrency: 1,
      reconcile: async ({ name }) => {
        if (name === 'first') return void (await gate.promise);
        order.push(name);
      },
    },
    stop.signal,
  );
  queue.add(ref('first'));
  queue.add(ref('low'), { lane: 'low' });
  for (let i = 0; i < 20; i += 1) queue.add(ref(`high-${i}`));
  gate.resolve();
  await expect.poll(() => order.length).toBe(21);
  expect(order[0]).toBe('high-0');
  expect(order.indexOf('low')).toBeLessThan(10);
  stop.abort();
});
