/** What a command prints, on its way to the broker: bounded by credits, kept until it is known to have arrived. */
import type { Readable } from 'node:stream';
import type { Output, OutputStream } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { KeptOutput } from './kept-output.ts';

const FRAME_BYTES = 64 * 1024;
/** Between two frames: a program that prints byte by byte makes hundreds of them a second, not hundreds of thousands. */
const GATHER_MS = 4;

export type OutputLimits = Readonly<{ execution: string; credit: bigint; limit: bigint }>;
type Piece = Readonly<{ stream: OutputStream; data: Buffer }>;

/** One command's output. Reading stops when credit is used up, so a command that prints fast is slowed, not buffered. */
export class OutputBuffer {
  readonly #limits: OutputLimits;
  readonly #send: (output: Output) => void;
  readonly #streams = new Set<Readable>();
  readonly #kept = new KeptOutput();
  #credit: bigint;
  #sent = 0n;
  #dropped = 0n;
  /** Read, and not sent: what credit was missing for, at most what a pipe gave at once; or what is being gathered. */
  #waiting: Piece[] = [];
  #waitingBytes = 0;
  #lastSentAt = Number.NEGATIVE_INFINITY;
  #timer: NodeJS.Timeout | undefined;
  #granted = Promise.withResolvers<void>();

  /** `send` may be called while nobody is connected; what it loses is sent again by `resend`. */
  constructor(limits: OutputLimits, send: (output: Output) => void) {
    this.#limits = limits;
    this.#credit = limits.credit;
    this.#send = send;
  }

  /** Resolves when the stream has ended. */
  read(stream: Readable, which: OutputStream): Promise<void> {
    this.#streams.add(stream);
    stream.on('data', (data: Buffer) => this.#take({ stream: which, data }));
    return new Promise((resolve) => {
      const done = () => {
        this.#streams.delete(stream);
        resolve();
      };
      stream.once('close', done);
      stream.once('error', done);
    });
  }

  /** Cumulative. */
  grant(credit: bigint): void {
    if (credit <= this.#credit) return;
    this.#credit = credit;
    this.flush();
    this.#granted.resolve();
    this.#granted = Promise.withResolvers();
  }

  /** Resolves with the next grant. */
  credited(): Promise<void> {
    return this.#granted.promise;
  }

  /** Everything before it is on the broker's disk: it is never asked for again. */
  arrived(offset: bigint): void {
    this.#kept.forget(offset);
  }

  /** From this offset on, to a peer that has what is before it. */
  resend(offset: bigint): void {
    for (const { stream, offset: at, data } of this.#kept.from(offset)) {
      for (let i = 0; i < data.length; i += FRAME_BYTES) {
        const piece = data.subarray(i, i + FRAME_BYTES);
        this.#send({ execution: this.#limits.execution, stream, offset: at + BigInt(i), data: piece });
      }
    }
  }

  /** Sends what was being gathered, as far as there is credit for it. */
  flush(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    while (this.#waitingBytes > 0 && this.#sent < this.#credit) this.#sendOne(Number(this.#credit - this.#sent));
    for (const stream of this.#streams) {
      if (this.blocked && !stream.isPaused()) stream.pause();
      else if (!this.blocked && stream.isPaused()) stream.resume();
    }
  }

  /** There is more, and no credit for it. */
  get blocked(): boolean {
    return this.#waitingBytes > 0 && this.#sent >= this.#credit;
  }

  get waiting(): boolean {
    return this.#waitingBytes > 0;
  }

  get sent(): bigint {
    return this.#sent;
  }

  get dropped(): bigint {
    return this.#dropped;
  }

  #take({ stream, data }: Piece): void {
    const room = this.#limits.limit - this.#sent - BigInt(this.#waitingBytes);
    const taken = room >= BigInt(data.length) ? data : data.subarray(0, Math.max(0, Number(room)));
    this.#dropped += BigInt(data.length - taken.length);
    if (taken.length === 0) return;
    this.#waiting.push({ stream, data: taken });
    this.#waitingBytes += taken.length;
    const elapsed = performance.now() - this.#lastSentAt;
    if (elapsed >= GATHER_MS || this.#waitingBytes >= FRAME_BYTES) this.flush();
    else this.#timer ??= setTimeout(() => this.flush(), GATHER_MS - elapsed);
  }

  /** The longest run of one stream that fits. */
  #sendOne(credit: number): void {
    const most = Math.min(FRAME_BYTES, credit);
    const pieces: Buffer[] = [];
    let bytes = 0;
    const [{ stream } = { stream: undefined }] = this.#waiting;
    if (stream === undefined) return;
    let used = 0;
    for (const piece of this.#waiting) {
      if (piece.stream !== stream || bytes === most) break;
      const part = piece.data.subarray(0, most - bytes);
      pieces.push(part);
      bytes += part.length;
      if (part.length < piece.data.length) {
        this.#waiting[used] = { stream, data: piece.data.subarray(part.length) };
        break;
      }
      used += 1;
    }
    this.#waiting.splice(0, used);
    this.#waitingBytes -= bytes;
    const data = pieces.length === 1 && pieces[0] !== undefined ? pieces[0] : Buffer.concat(pieces, bytes);
    const output: Output = { execution: this.#limits.execution, stream, offset: this.#sent, data };
    this.#sent += BigInt(bytes);
    this.#lastSentAt = performance.now();
    this.#kept.add(stream, data);
    this.#send(output);
  }
}
