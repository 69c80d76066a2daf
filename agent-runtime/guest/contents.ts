/** File contents on their way in: asked for by hash, a batch at a time, and read in that order. */
import type { Content } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';

/** `from`: what is there of it already. */
export type Wanted = Readonly<{ sha256: Buffer; size: number; from: number }>;

/** Of one batch (CONTRACTS 6), and what is held here at most before the connection is not read on. */
const BATCH_BYTES = 4 * 1024 * 1024;
const BATCH_FILES = 1_000;

export class Contents {
  readonly #ask: (batch: readonly Wanted[]) => void;
  readonly #from = new Map<string, number>();
  readonly #pieces: Content[] = [];
  #heldBytes = 0;
  #wanted = false;
  #failed: Error | undefined;
  #wake: (() => void) | undefined;
  #room: PromiseWithResolvers<void> | undefined;

  constructor(ask: (batch: readonly Wanted[]) => void) {
    this.#ask = ask;
  }

  /** A batch, to be read in order. Disposed of: what is still to come of it is dropped. */
  want(batch: readonly Wanted[]): Disposable {
    this.#clear();
    this.#failed = undefined;
    this.#wanted = true;
    for (const { sha256, from } of batch) this.#from.set(sha256.toString('hex'), from);
    this.#ask(batch);
    return {
      [Symbol.dispose]: () => {
        this.#wanted = false;
        this.#clear();
      },
    };
  }

  /** Resolves when more may come. */
  receive(content: Content): Promise<void> | undefined {
    if (!this.#wanted) return undefined;
    this.#pieces.push(content);
    this.#heldBytes += content.data.length;
    this.#wake?.();
    if (this.#heldBytes < BATCH_BYTES) return undefined;
    this.#room ??= Promise.withResolvers();
    return this.#room.promise;
  }

  /** Whoever reads stops with this error: the other side forgot what it was asked. */
  fail(error: Error): void {
    this.#failed = error;
    this.#clear();
    this.#wake?.();
  }

  async *read(sha256: Buffer): AsyncIterable<Buffer> {
    for (let offset = BigInt(this.#from.get(sha256.toString('hex')) ?? 0); ;) {
      if (this.#failed !== undefined) throw this.#failed;
      const piece = this.#pieces.shift();
      if (piece === undefined) {
        this.#makeRoom();
        await new Promise<void>((resolve) => (this.#wake = resolve));
        continue;
      }
      this.#heldBytes -= piece.data.length;
      // Of an earlier batch that was given up.
      if (!sha256.equals(piece.sha256) || (piece.error === '' && piece.offset !== offset)) continue;
      if (piece.error !== '') throw new Error(`content ${sha256.toString('hex')} can't be had: ${piece.error}`);
      offset += BigInt(piece.data.length);
      yield piece.data;
      if (piece.last) return;
    }
  }

  #clear(): void {
    this.#from.clear();
    this.#pieces.length = 0;
    this.#heldBytes = 0;
    this.#makeRoom();
  }

  #makeRoom(): void {
    this.#room?.resolve();
    this.#room = undefined;
  }
}

/** In order, none over the limits but for a single file that is. */
export function* batches<T>(all: readonly T[], sizeOf: (item: T) => number): Iterable<T[]> {
  let batch: T[] = [];
  let bytes = 0;
  for (const item of all) {
    if (batch.length === BATCH_FILES || (batch.length > 0 && bytes + sizeOf(item) > BATCH_BYTES)) {
      yield batch;
      batch = [];
      bytes = 0;
    }
    batch.push(item);
    bytes += sizeOf(item);
  }
  if (batch.length > 0) yield batch;
}
