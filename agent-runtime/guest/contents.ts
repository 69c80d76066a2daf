/** File contents on their way in: asked for by hash, one at a time, read piece by piece. */
import type { Content } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';

type Waiting = { sha256: Buffer; pieces: Content[]; wake: (() => void) | undefined; offset: bigint };

export class Contents {
  readonly #ask: (sha256: readonly Buffer[]) => void;
  #waiting: Waiting | undefined;

  constructor(ask: (sha256: readonly Buffer[]) => void) {
    this.#ask = ask;
  }

  /** The sender keeps at most a batch under way (CONTRACTS 6), which is all that is ever held here. */
  readonly read = (sha256: Buffer): AsyncIterable<Buffer> => this.#read(sha256);

  receive(content: Content): void {
    const waiting = this.#waiting;
    // A piece that was sent again after a reconnect, or of something nobody waits for any more.
    if (
      waiting === undefined ||
      !waiting.sha256.equals(content.sha256) ||
      (content.error === '' && content.offset !== waiting.offset)
    )
      return;
    waiting.offset += BigInt(content.data.length);
    waiting.pieces.push(content);
    waiting.wake?.();
  }

  /** The other side forgot what it was asked. */
  askAgain(): void {
    if (this.#waiting === undefined) return;
    this.#ask([this.#waiting.sha256]);
  }

  async *#read(sha256: Buffer): AsyncIterable<Buffer> {
    const waiting: Waiting = { sha256, pieces: [], wake: undefined, offset: 0n };
    this.#waiting = waiting;
    try {
      this.#ask([sha256]);
      for (;;) {
        const piece = waiting.pieces.shift();
        if (piece === undefined) {
          await new Promise<void>((resolve) => (waiting.wake = resolve));
          continue;
        }
        if (piece.error !== '') throw new Error(`content ${sha256.toString('hex')} can't be had: ${piece.error}`);
        yield piece.data;
        if (piece.last) return;
      }
    } finally {
      this.#waiting = undefined;
    }
  }
}
