/** Bytes of a stream, so many at a time; never more is held than is asked for, and one piece of the source. */
import { broken } from './broken.ts';

export class ByteReader {
  readonly #source: AsyncIterator<Buffer>;
  #held: Buffer = Buffer.alloc(0);
  /** Bytes handed out so far. */
  at = 0;

  constructor(source: AsyncIterable<Buffer>) {
    this.#source = source[Symbol.asyncIterator]();
  }

  /** Exactly so many. @throws PermanentError BadRequest at the end */
  async take(length: number): Promise<Buffer> {
    const pieces: Buffer[] = [];
    for await (const piece of this.pieces(length)) pieces.push(piece);
    return pieces.length === 1 && pieces[0] !== undefined ? pieces[0] : Buffer.concat(pieces, length);
  }

  /** The same, in pieces as they come. */
  async *pieces(length: number): AsyncIterable<Buffer> {
    for (let left = length; left > 0;) {
      if (!(await this.#fill())) throw broken(`it ends at byte ${this.at}, in the middle of a member: it was cut`);
      const piece = this.#held.subarray(0, left);
      this.#held = this.#held.subarray(piece.length);
      this.at += piece.length;
      left -= piece.length;
      yield piece;
    }
  }

  async atEnd(): Promise<boolean> {
    return !(await this.#fill());
  }

  /** The source is told that nobody reads on. */
  async close(): Promise<void> {
    await this.#source.return?.();
  }

  async #fill(): Promise<boolean> {
    while (this.#held.length === 0) {
      const { done, value } = await this.#source.next();
      if (done === true) return false;
      this.#held = value;
    }
    return true;
  }
}
