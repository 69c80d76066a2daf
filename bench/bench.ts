/** What every bench is: one function over an installation. */
import type { Installation } from '../test/installation/install.ts';
import type { Figures } from './measure.ts';

export type BenchOptions = Readonly<{
  installation: Installation;
  /** Instead of the bench's own number. */
  samples?: number;
  onProgress: (line: string) => void;
}>;
export type Parts = Readonly<{ parts: readonly (Figures & Readonly<{ part: string }>)[] }>;
export type Bench = (options: BenchOptions, signal: AbortSignal) => Promise<Figures | Parts>;
