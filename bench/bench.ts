/** What every bench is: one function over an installation. */
import type { Installation } from '../test/installation/install.ts';
import type { Figures } from './measure.ts';

export type BenchOptions = Readonly<{
  installation: Installation;
  /** Instead of the bench's own number. */
  samples?: number;
  onProgress: (line: string) => void;
}>;
export type Part = Figures &
  Readonly<{ part: string; /** What else was seen: by how much processes grew. */ grownMiB?: object }>;
export type Parts = Readonly<{ parts: readonly Part[] }>;
export type Bench = (options: BenchOptions, signal: AbortSignal) => Promise<Figures | Parts>;
/** Needs no cluster. */
export type LocalBench = (options: Omit<BenchOptions, 'installation'>, signal: AbortSignal) => Promise<Figures | Parts>;
