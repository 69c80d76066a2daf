/** What every bench is: one function over an installation. */
import type { Installation } from '../test/installation/install.ts';
import type { Figures } from './measure.ts';

export type BenchOptions = Readonly<{
  installation: Installation;
  /** Instead of the bench's own number. */
  samples?: number;
  onProgress: (line: string) => void;
}>;
/** Of a claim with several cases: each has figures of its own, and what else was seen in it. */
export type Parts = Readonly<{ parts: Readonly<Record<string, Figures & Readonly<{ grownMiB?: object }>>> }>;
export type Bench = (options: BenchOptions, signal: AbortSignal) => Promise<Figures | Parts>;
/** Needs no cluster. */
export type LocalBench = (options: Omit<BenchOptions, 'installation'>, signal: AbortSignal) => Promise<Figures | Parts>;
