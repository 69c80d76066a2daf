/**
 * What the broker must not forget while its pod lives: executions that it was sent, what they printed, how they ended,
 * and whom it obeyed. One file that is only added to, and one per execution for its output, on the broker's own disk.
 */
import { randomUUID } from 'node:crypto';
import {
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
  type TreeOffer,
} from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { Down, Up } from './broker.ts';
import type { Frame } from '../frames.ts';
import { OutputLog } from './output-log.ts';

/** One execution, in memory and on disk. Output stays on disk alone. */
export type Entry = {
  readonly dispatch: Dispatch;
  readonly output: OutputLog;
  /** The guest process that took it; undefined while none did. */
  work: string | undefined;
  finished: Finished | undefined;
  /** Complete when the last page says `last`. */
  offers: TreeOffer[];
  offerBytes: number;
  lost: string | undefined;
  /** What is not worth a record: an owner that attaches says it again. */
  credit: bigint;
  cancelled: boolean;
};
/** (incarnation, epoch): the higher pair is the later owner. */
export type Owner = Readonly<{ incarnation: bigint; epoch: bigint }>;

/** Beyond this the file starts over, once nothing in it is open. */
const ROTATE_BYTES = 4 * 1024 * 1024;
/** A guest of ours gives up at 24 MiB; our disk is small. */
const MAX_OFFER_BYTES = 26 * 1024 * 1024;

export class Journal {
  readonly boot: string;
  readonly entries = new Map<string, Entry>();
  readonly #folder: string;
  readonly #fd: number;
  #bytes: number;
  #owner: Owner = { incarnation: 0n, epoch: 0n };

  /** Reads what an earlier broker of this pod left. */
  constructor(stateDir: string, kernel = kernelBoot()) {
    this.#folder = join(stateDir, 'outputs');
    const path = join(stateDir, 'journal');
    const bootFile = join(stateDir, 'boot');
    const [boot = '', bootedKernel] = existsSync(bootFile) ? readFileSync(bootFile, 'utf8').split('\n') : [];
    if (boot === '' || bootedKernel !== kernel) {
      // After a crash of the node the last writes may be gone: what ran then is unknown, and must not look like never sent.
      rmSync(this.#folder, { recursive: true, force: true });
      rmSync(path, { force: true });
      this.boot = randomUUID();
      writeFileSync(bootFile, `${this.boot}\n${kernel}`, { flush: true });
    } else this.boot = boot;
    mkdirSync(this.#folder, { recursive: true });
    const { frames, bytes } = readRecords(path);
    for (const frame of frames) this.#replay(frame);
    this.#fd = openSync(path, 'a', 0o600);
    // What a killed broker left half-written is cut off; its sender sends it again.
    ftruncateSync(this.#fd, bytes);
    this.#bytes = bytes;
    // Half of an offer: the guest has it still and starts over.
    for (const entry of this.entries.values()) if (entry.offers.length > 0 && !isOffered(entry)) this.offerAgain(entry);
  }

  /** The highest that was ever obeyed. */
  get owner(): Owner {
    return this.#owner;
  }

  obey(owner: Owner): void {
    if (owner.incarnation === this.#owner.incarnation && owner.epoch === this.#owner.epoch) return;
    this.#record([obeyed(owner)]);
    fdatasyncSync(this.#fd);
  }

  /** On disk, synced, when this returns: only then may the guest see it. `work`: the guest that it is handed to now. */
  dispatched(dispatch: Dispatch, work: string | undefined): Entry {
    const { execution } = dispatch;
    if (!/^[\w-]{1,64}$/.test(execution)) throw new Error(`${execution} is no execution id`);
    const frames = [down({ $case: 'dispatch', value: dispatch })];
    if (work !== undefined) frames.push(takenBy(execution, work));
    this.#record(frames);
    fdatasyncSync(this.#fd);
    return this.#entry(execution);
  }

  /** Which guest has it: one with another id never had it. */
  taken(entry: Entry, work: string): void {
    this.#record([takenBy(entry.dispatch.execution, work)]);
  }

  finished(entry: Entry, finished: Finished): void {
    if (entry.finished === undefined) this.#record([up({ $case: 'finished', value: finished })]);
  }

  /** @throws Error when it is larger than any that is meant */
  offered(entry: Entry, page: TreeOffer): void {
    if (isOffered(entry)) return;
    this.#record([up({ $case: 'offer', value: page })]);
    if (entry.offerBytes > MAX_OFFER_BYTES) throw new Error(`an offer is larger than ${MAX_OFFER_BYTES} bytes`);
  }

  /** It is offered anew: by a guest that starts over, or because an owner asks for it. */
  offerAgain(entry: Entry): void {
    const { execution } = entry.dispatch;
    this.#record([down({ $case: 'collect', value: { execution, collect: undefined } })]);
  }

  lost(entry: Entry, reason: string): void {
    this.#record([up({ $case: 'lost', value: { execution: entry.dispatch.execution, reason } })]);
  }

  settled(entry: Entry): void {
    const settle = { execution: entry.dispatch.execution, version: 0n, putBack: [], last: true };
    this.#record([down({ $case: 'settle', value: settle })]);
    if (this.entries.size > 0 || this.#bytes < ROTATE_BYTES) return;
    ftruncateSync(this.#fd, 0);
    this.#bytes = 0;
    this.#record([obeyed(this.#owner)]);
  }

  close(): void {
    closeSync(this.#fd);
    for (const { output } of this.entries.values()) output.close();
  }

  #record(frames: readonly Frame[]): void {
    const bytes = encode(frames);
    for (let at = 0; at < bytes.length;) at += writeSync(this.#fd, bytes, at);
    this.#bytes += bytes.length;
    for (const frame of frames) this.#replay(frame);
  }

  /** The one place where a record becomes state, be it new or read back. */
  #replay(frame: Frame): void {
    if (frame.$case === 'hello') {
      for (const { execution } of frame.value.inventory) this.#entry(execution).work = frame.value.status?.work;
      return;
    }
    if (frame.$case === 'content') return;
    const { message } = frame.value;
    switch (message?.$case) {
      case 'welcome':
        this.#owner = { incarnation: message.value.incarnation, epoch: message.value.epoch };
        return;
      case 'dispatch':
        this.entries.set(message.value.execution, this.#newEntry(message.value));
        return;
      case 'settle':
        this.entries.get(message.value.execution)?.output.remove();
        this.entries.delete(message.value.execution);
        return;
      case 'collect': {
        const entry = this.#entry(message.value.execution);
        entry.offers = [];
        entry.offerBytes = 0;
        return;
      }
      case 'finished':
        this.#entry(message.value.execution).finished = message.value;
        return;
      case 'lost':
        this.#entry(message.value.execution).lost = message.value.reason;
        return;
      case 'offer': {
        const entry = this.#entry(message.value.execution);
        entry.offers.push(message.value);
        entry.offerBytes += GuestFrame.encode({ frame }).finish().length;
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

  #newEntry(dispatch: Dispatch): Entry {
    return {
      dispatch,
      output: new OutputLog(join(this.#folder, dispatch.execution)),
      work: undefined,
      finished: undefined,
      offers: [],
      offerBytes: 0,
      lost: undefined,
      credit: dispatch.outputCredit,
      cancelled: false,
    };
  }
}

/** All of its pages are here. */
export function isOffered(entry: Entry): boolean {
  return entry.offers.at(-1)?.last === true;
}

function up(message: Up): Frame {
  return { $case: 'up', value: { seq: 0n, ack: 0n, message } };
}

function down(message: Down): Frame {
  return { $case: 'down', value: { seq: 0n, ack: 0n, message } };
}

function obeyed(owner: Owner): Frame {
  return down({ $case: 'welcome', value: { protocol: 1, attach: '', ...owner, resume: [] } });
}

function takenBy(execution: string, work: string): Frame {
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
function readRecords(path: string): { frames: readonly Frame[]; bytes: number } {
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

/** Another one after each start of the machine; empty where it is hidden. */
function kernelBoot(): string {
  const path = '/proc/sys/kernel/random/boot_id';
  return existsSync(path) ? readFileSync(path, 'utf8').trim() : '';
}
