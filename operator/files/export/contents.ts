/** Contents of a page of rows: small ones come many at once, for a query each would cost more than they do. */
import type { Source } from './members.ts';

export type Content = Readonly<{ sha256: Buffer | null; size: bigint }>;

/** What the store gives many of in one answer, and how much of it is asked for. */
const SMALL_BYTES = 256 * 1024;
const AHEAD_BYTES = 2 * 1024 * 1024;

export class Contents {
  readonly #source: Source;
  readonly #all: readonly Content[];
  readonly #signal: AbortSignal | undefined;
  #held: ReadonlyMap<string, Buffer> = new Map();

  constructor(source: Source, all: readonly Content[], signal: AbortSignal | undefined) {
    this.#source = source;
    this.#all = all;
    this.#signal = signal;
  }

  async *read(index: number, from: number, to: number): AsyncIterable<Buffer> {
    const { store, workspace } = this.#source;
    const content = this.#all[index];
    if (content === undefined || content.sha256 === null || content.size === 0n) return;
    if (content.size > SMALL_BYTES) {
      yield* store.readBlob(workspace.tenant, content.sha256, this.#signal, { from, to });
      return;
    }
    const hex = content.sha256.toString('hex');
    if (!this.#held.has(hex))
      this.#held = await store.readSmallBlobs(workspace.tenant, this.#smallFrom(index), this.#signal);
    const bytes = this.#held.get(hex);
    // Nothing: whoever sends it sees that it is too short.
    if (bytes !== undefined) yield bytes.subarray(from, to);
  }

  #smallFrom(index: number): readonly Buffer[] {
    const hashes: Buffer[] = [];
    let bytes = 0;
    for (let i = index; i < this.#all.length && bytes < AHEAD_BYTES; i += 1) {
      const content = this.#all[i];
      if (content === undefined || content.sha256 === null || content.size > SMALL_BYTES) continue;
      hashes.push(content.sha256);
      bytes += Number(content.size);
    }
    return hashes;
  }
}
