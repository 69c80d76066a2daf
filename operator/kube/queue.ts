/** A work queue: one in flight per key, back-off per key, two lanes. The one place that retries. */
import { PermanentError } from '../errors.ts';
import { classify } from './errors.ts';
import { keyOf, type Ref } from './types.ts';

export type Lane = 'high' | 'low';
/** Look again after this long, whether anything changed or not. */
export type Result = Readonly<{ afterMs?: number }> | void;
export type QueueOptions = Readonly<{
  reconcile: (ref: Ref, signal: AbortSignal) => Promise<Result>;
  concurrency: number;
  onError?: (ref: Ref, error: unknown) => void;
  baseDelayMs?: number;
  maxDelayMs?: number;
  random?: () => number;
}>;
export type Queue = Readonly<{
  /** A key that is queued already is queued once; one in flight runs again afterwards. */
  add(ref: Ref, options?: Readonly<{ lane?: Lane; afterMs?: number }>): void;
  stats(): Readonly<{ reconciles: number; failures: number; depth: number }>;
  /** Resolves once what was in flight at the abort has ended. */
  done: Promise<void>;
}>;

type Entry = {
  ref: Ref;
  lane: Lane;
  queued: boolean;
  running: boolean;
  again: boolean;
  failures: number;
  timer: NodeJS.Timeout | undefined;
};

/** One of the low lane after this many of the high one: nothing starves. */
const HIGH_SHARE = 8;

export function startQueue(options: QueueOptions, signal: AbortSignal): Queue {
  const entries = new Map<string, Entry>();
  const lanes: Record<Lane, string[]> = { high: [], low: [] };
  const random = options.random ?? Math.random;
  const base = options.baseDelayMs ?? 200;
  const max = options.maxDelayMs ?? 60_000;
  let running = 0;
  let fromHigh = 0;
  let reconciles = 0;
  let failures = 0;
  const ended = Promise.withResolvers<void>();

  const add: Queue['add'] = (ref, { lane = 'high', afterMs } = {}) => {
    if (signal.aborted) return;
    const key = keyOf(ref);
    const entry = entries.get(key) ?? {
      ref,
      lane,
      queued: false,
      running: false,
      again: false,
      failures: 0,
      timer: undefined,
    };
    entries.set(key, entry);
    if (afterMs !== undefined && afterMs > 0) {
      // The sooner of two wishes wins by being served first; the later one then finds little to do.
      clearTimeout(entry.timer);
      entry.timer = setTimeout(() => add(ref, { lane }), afterMs);
      return;
    }
    if (entry.running) entry.again = true;
    else if (!entry.queued) {
      entry.queued = true;
      entry.lane = lane;
      lanes[lane].push(key);
    }
    pump();
  };

  function pump(): void {
    while (!signal.aborted && running < options.concurrency) {
      const lane: Lane = lanes.low.length > 0 && (lanes.high.length === 0 || fromHigh >= HIGH_SHARE) ? 'low' : 'high';
      const key = lanes[lane].shift();
      if (key === undefined) return;
      fromHigh = lane === 'high' ? fromHigh + 1 : 0;
      const entry = entries.get(key);
      if (entry !== undefined) void work(key, entry);
    }
  }

  async function work(key: string, entry: Entry): Promise<void> {
    running += 1;
    reconciles += 1;
    entry.queued = false;
    entry.running = true;
    let afterMs: number | undefined;
    try {
      afterMs = (await options.reconcile(entry.ref, signal))?.afterMs;
      entry.failures = 0;
    } catch (error) {
      if (!signal.aborted) {
        failures += 1;
        entry.failures += 1;
        options.onError?.(entry.ref, error);
        const typed = classify(error);
        // Permanent: only a change of the object brings it back.
        if (!(typed instanceof PermanentError)) {
          const backOff = Math.min(max, base * 2 ** Math.min(entry.failures - 1, 20)) * (0.5 + random() / 2);
          afterMs = Math.max(typed.retryAfterMs ?? 0, backOff);
        }
      }
    }
    entry.running = false;
    running -= 1;
    if (entry.again) {
      entry.again = false;
      add(entry.ref, { lane: entry.lane });
    } else if (afterMs !== undefined) add(entry.ref, { lane: entry.lane, afterMs: Math.max(1, afterMs) });
    else if (entry.failures === 0 && !entry.queued && entry.timer === undefined) entries.delete(key);
    if (signal.aborted && running === 0) ended.resolve();
    pump();
  }

  signal.addEventListener(
    'abort',
    () => {
      for (const entry of entries.values()) clearTimeout(entry.timer);
      if (running === 0) ended.resolve();
    },
    { once: true },
  );
  return {
    add,
    stats: () => ({ reconciles, failures, depth: lanes.high.length + lanes.low.length }),
    done: ended.promise,
  };
}
