/** Subject and reference, sample by sample in turn, so that a noisy moment of the machine hits both alike. */

import { setTimeout as delay } from 'node:timers/promises';

/** Runs once and is timed as a whole. */
export type Sample = (index: number, signal: AbortSignal) => Promise<void>;
export type Side = Readonly<{ name: string; sample: Sample; /** Untimed, before each sample. */ before?: Sample }>;
/** Milliseconds. */
export type Percentiles = Readonly<{ p50: number; p95: number; p99: number }>;
/** The line that programs read; `ratio` is reference ÷ subject, so more is better. */
export type Figures = Readonly<{
  subject: Percentiles;
  reference: Percentiles & Readonly<{ name: string }>;
  ratio: Readonly<{ p50: number; p95: number }>;
  samples: number;
}>;
export type Plan = Readonly<{
  subject: Side;
  reference: Side;
  samples: number;
  warmUp: number;
  /** Untimed rest before each sample: what the other side left to do (closing a container's process) is not billed here. */
  settleMs?: number;
  onProgress?: (done: number, of: number) => void;
  /** Milliseconds, monotonic. */
  now?: () => number;
}>;

export async function measure(plan: Plan, signal: AbortSignal): Promise<Figures> {
  const now = plan.now ?? (() => performance.now());
  const time = async (side: Side, index: number): Promise<number> => {
    signal.throwIfAborted();
    await side.before?.(index, signal);
    if (plan.settleMs !== undefined) await delay(plan.settleMs, undefined, { signal });
    const began = now();
    await side.sample(index, signal);
    return now() - began;
  };
  for (let i = 0; i < plan.warmUp; i += 1) {
    await time(plan.subject, -1 - i);
    await time(plan.reference, -1 - i);
  }
  const subject: number[] = [];
  const reference: number[] = [];
  for (let i = 0; i < plan.samples; i += 1) {
    // Who goes first changes each time: what one leaves behind (caches, garbage) must not favour the other.
    const order = i % 2 === 0 ? (['subject', 'reference'] as const) : (['reference', 'subject'] as const);
    for (const which of order) (which === 'subject' ? subject : reference).push(await time(plan[which], i));
    plan.onProgress?.(i + 1, plan.samples);
  }
  return figures(subject, reference, plan.reference.name);
}

/** Pure. Both lists have at least one value. */
export function figures(subject: readonly number[], reference: readonly number[], name: string): Figures {
  const s = percentiles(subject);
  const r = percentiles(reference);
  return {
    subject: s,
    reference: { name, ...r },
    ratio: { p50: round(r.p50 / s.p50), p95: round(r.p95 / s.p95) },
    samples: subject.length,
  };
}

/** Nearest rank: every figure is a value that was measured. */
export function percentiles(values: readonly number[]): Percentiles {
  const sorted = values.toSorted((a, b) => a - b);
  const at = (p: number) => round(sorted[Math.max(0, Math.ceil((p / 100) * sorted.length) - 1)] ?? Number.NaN);
  return { p50: at(50), p95: at(95), p99: at(99) };
}

function round(value: number): number {
  return Math.round(value * 100) / 100;
}
