/**
 * What the broker must not forget while its pod lives: executions that it was sent, what they printed, how they ended.
 * One file that is only added to, and one per execution for its output, on the broker's own disk.
 */
import { randomUUID } from 'node:crypto';
import {
  appendFileSync,
  closeSync,
  existsSync,
  fdatasyncSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import {
  ExecutionPhase,
  GuestFrame,
  type Dispatch,
  type Finished,
  type Output,
  type TreeOffer,
} from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { Frame } from '../frames.ts';

/** One execution. Output stays on disk alone. */
export type Entry = {
  readonly dispatch: Dispatch;
  /** The guest process that took it; undefined while none did. */
  work: string | undefined;
  outputBytes: bigint;
  finished: Finished | undefined;
  offers: TreeOffer[];
  lost: string | undefined;
};

/** Beyond this the file starts over, once nothing in it is open. */
const ROTATE_BYTES = 4 * 1024 * 1024;

export class Journal {
  readonly boot: string;
  readonly entries = new Map<string, Entry>();
  readonly #folder: string;
  readonly #fd: number;
  #bytes: number;

  /** Reads what an earlier broker of this pod left. */
  constructor(stateDir: string) {
    this.#folder = join(stateDir, 'outputs');
    mkdirSync(this.#folder, { recursive: true });
    const bootFile = join(stateDir, 'boot');
    if (!existsSync(bootFile)) writeFileSync(bootFile, randomUUID(), { flush: true });
    this.boot = readFileSync(bootFile, 'utf8');
    const path = join(stateDir, 'journal');
    const { frames, bytes } = readFrames(path);
    for (const frame of frames) this.#replay(frame);
    this.#fd = openSync(path, 'a', 0o600);
    // What a killed broker left half-written is cut off; its sender sends it again.
    ftruncateSync(this.#fd, bytes);
    this.#bytes = bytes;
    for (const entry of this.entries.values()) {
      for (const output of this.outputFrom(entry, 0n)) entry.outputBytes += BigInt(output.data.length);
    }
  }

  /** On disk, synced, when this returns: only then may the guest see it. `work`: the guest that it is handed to now. */
  dispatched(dispatch: Dispatch, work: string | undefined): Entry {
    const frames: Frame[] = [
      { $case: 'down', value: { seq: 0n, ack: 0n, message: { $case: 'dispatch', value: dispatch } } },
    ];
    if (work !== undefined) frames.push(taken(dispatch.execution, work));
    this.#append(frames);
    fdatasyncSync(this.#fd);
    for (const frame of frames) this.#replay(frame);
    return this.#entry(dispatch.execution);
  }

  /** Which guest has it: one with another id never had it. */
  taken(entry: Entry, work: string): void {
    this.#record(taken(entry.dispatch.execution, work));
  }

  /** False: it was written before (the guest sent it again), or comes after a gap. */
  output(entry: Entry, output: Output): boolean {
    if (output.offset !== entry.outputBytes) return false;
    appendFileSync(
      this.#output(output.execution),
      encode([{ $case: 'up', value: { seq: 0n, ack: 0n, message: { $case: 'output', value: output } } }]),
      {
        mode: 0o600,
      },
    );
    entry.outputBytes += BigInt(output.data.length);
    return true;
  }

  finished(entry: Entry, finished: Finished): void {
    if (entry.finished === undefined)
      this.#record({ $case: 'up', value: { seq: 0n, ack: 0n, message: { $case: 'finished', value: finished } } });
  }

  offered(offer: TreeOffer): void {
    this.#record({ $case: 'up', value: { seq: 0n, ack: 0n, message: { $case: 'offer', value: offer } } });
  }

  lost(entry: Entry, reason: string): void {
    const { execution } = entry.dispatch;
    this.#record({
      $case: 'up',
      value: { seq: 0n, ack: 0n, message: { $case: 'lost', value: { execution, reason } } },
    });
  }

  settled(execution: string): void {
    const entry = this.entries.get(execution);
    if (entry === undefined) return;
    const settle = { execution, version: 0n, putBack: [], last: true };
    this.#record({ $case: 'down', value: { seq: 0n, ack: 0n, message: { $case: 'settle', value: settle } } });
    if (entry.outputBytes > 0n) rmSync(this.#output(execution), { force: true });
    if (this.entries.size === 0 && this.#bytes > ROTATE_BYTES) {
      ftruncateSync(this.#fd, 0);
      this.#bytes = 0;
    }
  }

  close(): void {
    closeSync(this.#fd);
  }

  /** Frames from `offset` on; one that spans it is sent whole, its reader drops what it has. */
  *outputFrom(entry: Entry, offset: bigint): Iterable<Output> {
    for (const frame of readFrames(this.#output(entry.dispatch.execution)).frames) {
      if (frame.$case !== 'up' || frame.value.message?.$case !== 'output') continue;
      const output = frame.value.message.value;
      if (output.offset + BigInt(output.data.length) > offset) yield output;
    }
  }

  #record(frame: Frame): void {
    this.#append([frame]);
    this.#replay(frame);
  }

  #append(frames: readonly Frame[]): void {
    const bytes = encode(frames);
    writeSync(this.#fd, bytes);
    this.#bytes += bytes.length;
  }

  /** The one place where a record becomes state, be it new or read back. */
  #replay(frame: Frame): void {
    if (frame.$case === 'hello') {
      const entry = this.entries.get(frame.value.inventory[0]?.execution ?? '');
      if (entry !== undefined) entry.work = frame.value.status?.work;
      return;
    }
    if (frame.$case === 'content') return;
    const { message } = frame.value;
    switch (message?.$case) {
      case 'dispatch':
        this.entries.set(message.value.execution, {
          dispatch: message.value,
          work: undefined,
          outputBytes: 0n,
          finished: undefined,
          offers: [],
          lost: undefined,
        });
        return;
      case 'settle':
        this.entries.delete(message.value.execution);
        return;
      case 'finished':
        this.#entry(message.value.execution).finished = message.value;
        return;
      case 'lost':
        this.#entry(message.value.execution).lost = message.value.reason;
        return;
      case 'offer': {
        const entry = this.#entry(message.value.execution);
        // A guest that offers anew starts over; the last page of the former offer says where it ended.
        if (entry.offers.at(-1)?.last === true) entry.offers = [];
        entry.offers.push(message.value);
        return;
      }
      default:
        return;
    }
  }

  #entry(execution: string): Entry {
    const entry = this.entries.get(execution);
    if (entry === undefined) throw new Error(`the journal has no execution ${execution}`);
    return entry;
  }

  #output(execution: string): string {
    return join(this.#folder, execution);
  }
}

function taken(execution: string, work: string): Frame {
  const status = { connected: true, work, syncedVersion: 0n, facts: {} };
  const inventory = [{ execution, phase: ExecutionPhase.EXECUTION_PHASE_RUNNING, outputBytes: 0n }];
  return { $case: 'hello', value: { protocolMin: 1, protocolMax: 1, status, inventory } };
}

function encode(frames: readonly Frame[]): Buffer {
  const records = frames.flatMap((frame) => {
    const body = GuestFrame.encode({ frame }).finish();
    const head = Buffer.allocUnsafe(4);
    head.writeUInt32BE(body.length, 0);
    return [head, body];
  });
  return Buffer.concat(records);
}

/** Whole records, and how many bytes they are. */
function readFrames(path: string): { frames: readonly Frame[]; bytes: number } {
  const bytes = existsSync(path) ? readFileSync(path) : Buffer.alloc(0);
  const frames: Frame[] = [];
  let at = 0;
  while (at + 4 <= bytes.length) {
    const end = at + 4 + bytes.readUInt32BE(at);
    if (end > bytes.length) break;
    const { frame } = GuestFrame.decode(bytes.subarray(at + 4, end));
    if (frame !== undefined) frames.push(frame);
    at = end;
  }
  return { frames, bytes: at };
}
