/**
 * What one owner has not been told of one execution: output as far as its credit goes, then how it ended, then what it
 * changed. An owner that attaches gets a new one of each.
 */
import type { AttachRequest } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { isOffered, type Entry } from './journal.ts';
import type { Cursor } from './output-log.ts';

type Up = NonNullable<AttachRequest['message']>;

const FRAME_BYTES = 64 * 1024;

export class Outbox {
  readonly #entry: Entry;
  readonly #send: (message: Up) => void;
  readonly #cursor: Cursor;
  #credit: bigint;
  #finishedSent = false;
  #endSent = false;

  /** `offset`: of output, what the owner has. `credit`: up to where it may be sent. Both are the owner's numbers. */
  constructor(entry: Entry, offset: bigint, credit: bigint, send: (message: Up) => void) {
    this.#entry = entry;
    this.#cursor = entry.output.cursorAt(Number(offset));
    this.#credit = credit;
    this.#send = send;
  }

  /** Sends all that may be sent now, in order. */
  push(): void {
    const { execution } = this.#entry.dispatch;
    for (;;) {
      const room = Number(this.#credit) - this.#cursor.offset;
      const piece = this.#entry.output.read(this.#cursor, Math.min(FRAME_BYTES, room));
      if (piece === undefined) break;
      const value = { execution, stream: piece.stream, offset: BigInt(piece.offset), data: piece.data };
      this.#send({ $case: 'output', value });
    }
    // Output is complete before its end is told.
    if (this.#cursor.offset < this.#entry.output.bytes) return;
    const { finished, offers, lost } = this.#entry;
    if (finished !== undefined && !this.#finishedSent) {
      this.#finishedSent = true;
      this.#send({ $case: 'finished', value: finished });
    }
    if (this.#endSent) return;
    if (lost !== undefined) {
      this.#endSent = true;
      this.#send({ $case: 'lost', value: { execution, reason: lost } });
    } else if (isOffered(this.#entry)) {
      // As a whole: pages of which the rest never comes would be half a diff.
      this.#endSent = true;
      for (const value of offers) this.#send({ $case: 'offer', value });
    }
  }

  grant(credit: bigint): void {
    if (credit > this.#credit) this.#credit = credit;
    this.push();
  }

  /** Another offer will follow. */
  offerAgain(): void {
    this.#endSent = false;
  }
}
