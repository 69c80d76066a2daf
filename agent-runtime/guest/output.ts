/** What a command prints, on its way to the broker: bounded by credits, kept until it is known to have arrived. */
import type { Readable } from 'node:stream';
import { OutputStream, type Output } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';

export const WINDOW_BYTES = 1024 * 1024;
const FRAME_BYTES = 64 * 1024;

export type OutputLimits = Readonly<{ execution: string; credit: bigint; limit: bigint }>;

/** One command's output. Reading stops when credit is used up, so a command that prints fast is slowed, not buffered. */
export class OutputBuffer {
  readonly #execution: string;
  readonly #limit: bigint;
  readonly #send: (output: Output) => void;
  #credit: bigint;
  #sent = 0n;
  #dropped = 0n;
  #kept: Output[] = [];
  readonly #paused = new Set<Readable>();

  /** `send` may be called while nobody is connected; what it loses is sent again by `resend`. */
  constructor(limits: OutputLimits, send: (output: Output) => void) {
    this.#execution = limits.execution;
    this.#credit = limits.credit;
    this.#limit = limits.limit;
    this.#send = send;
  }

  /** Resolves when the stream has ended. */
  read(stream: Readable, which: OutputStream): Promise<void> {
    stream.on('data', (bytes: Buffer) => {
      for (let at = 0; at < bytes.length; at += FRAME_BYTES) this.#take(bytes.subarray(at, at + FRAME_BYTES), which);
      if (this.#sent >= this.#credit && this.#sent < this.#limit) {
        stream.pause();
        this.#paused.add(stream);
      }
    });
    return new Promise((resolve) => {
      stream.once('close', resolve);
      stream.once('error', () => resolve());
    });
  }

  /** Cumulative. What lies a window below it has been taken by the owner, so nobody asks for it again. */
  grant(credit: bigint): void {
    if (credit <= this.#credit) return;
    this.#credit = credit;
    const arrived = credit - BigInt(WINDOW_BYTES);
    this.#kept = this.#kept.filter((output) => output.offset + BigInt(output.data.length) > arrived);
    for (const stream of this.#paused) stream.resume();
    this.#paused.clear();
  }

  /** From this offset on, to a peer that has what is before it. */
  resend(offset: bigint): void {
    for (const output of this.#kept) if (output.offset >= offset) this.#send(output);
  }

  get sent(): bigint {
    return this.#sent;
  }

  get dropped(): bigint {
    return this.#dropped;
  }

  #take(bytes: Buffer, which: OutputStream): void {
    const room = this.#limit - this.#sent;
    const kept = room >= BigInt(bytes.length) ? bytes : bytes.subarray(0, Number(room));
    this.#dropped += BigInt(bytes.length - kept.length);
    if (kept.length === 0) return;
    const output = { execution: this.#execution, stream: which, offset: this.#sent, data: Buffer.from(kept) };
    this.#sent += BigInt(kept.length);
    this.#kept.push(output);
    this.#send(output);
  }
}
