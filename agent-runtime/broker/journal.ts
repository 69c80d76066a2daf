/**
 * What the broker must not forget while its pod lives: executions that it was sent, what they printed, how they ended.
 * A folder per execution on the broker's own disk; written before anybody acts on it, gone once settled.
 */
import { randomUUID } from 'node:crypto';
import {
  appendFileSync,
  closeSync,
  existsSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import {
  AttachRequest,
  AttachResponse,
  type Dispatch,
  type Finished,
  type Output,
  type TreeOffer,
} from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';

type Up = NonNullable<AttachRequest['message']>;

/** One execution, in memory and on disk. Output stays on disk alone. */
export type Entry = {
  readonly dispatch: Dispatch;
  /** The guest process that took it; undefined while none did. */
  work: string | undefined;
  outputBytes: bigint;
  finished: Finished | undefined;
  offers: TreeOffer[];
  lost: string | undefined;
};

export class Journal {
  readonly boot: string;
  readonly entries = new Map<string, Entry>();
  readonly #folder: string;

  /** Reads what an earlier broker of this pod left. */
  constructor(stateDir: string) {
    this.#folder = join(stateDir, 'executions');
    mkdirSync(this.#folder, { recursive: true });
    const bootFile = join(stateDir, 'boot');
    if (!existsSync(bootFile)) writeSynced(bootFile, Buffer.from(randomUUID()));
    this.boot = readFileSync(bootFile, 'utf8');
    for (const id of readdirSync(this.#folder)) this.#load(id);
  }

  /** On disk, fsynced, when this returns: only then may the guest see it. */
  dispatched(dispatch: Dispatch): Entry {
    const folder = join(this.#folder, dispatch.execution);
    mkdirSync(folder);
    writeSynced(
      join(folder, 'dispatch'),
      AttachResponse.encode({ seq: 0n, ack: 0n, message: { $case: 'dispatch', value: dispatch } }).finish(),
    );
    const entry: Entry = {
      dispatch,
      work: undefined,
      outputBytes: 0n,
      finished: undefined,
      offers: [],
      lost: undefined,
    };
    this.entries.set(dispatch.execution, entry);
    return entry;
  }

  /** Which guest has it: one with another id never had it. */
  taken(entry: Entry, work: string): void {
    entry.work = work;
    writeFileSync(this.#file(entry, 'work'), work);
  }

  /** False: it was written before (the guest sent it again), or comes after a gap. */
  output(entry: Entry, output: Output): boolean {
    if (output.offset !== entry.outputBytes) return false;
    appendMessage(this.#file(entry, 'output'), { $case: 'output', value: output });
    entry.outputBytes += BigInt(output.data.length);
    return true;
  }

  finished(entry: Entry, finished: Finished): void {
    if (entry.finished !== undefined) return;
    appendMessage(this.#file(entry, 'result'), { $case: 'finished', value: finished });
    entry.finished = finished;
  }

  offered(entry: Entry, offer: TreeOffer): void {
    // A guest that offers anew starts over; the last page of the former offer says where it ended.
    if (entry.offers.at(-1)?.last === true) entry.offers = [];
    appendMessage(this.#file(entry, 'result'), { $case: 'offer', value: offer });
    entry.offers.push(offer);
  }

  lost(entry: Entry, reason: string): void {
    entry.lost = reason;
    appendMessage(this.#file(entry, 'result'), {
      $case: 'lost',
      value: { execution: entry.dispatch.execution, reason },
    });
  }

  settled(execution: string): void {
    if (!this.entries.delete(execution)) return;
    rmSync(join(this.#folder, execution), { recursive: true, force: true });
  }

  /** Frames from `offset` on; one that spans it is sent whole, its reader drops what it has. */
  *outputFrom(entry: Entry, offset: bigint): Iterable<Output> {
    for (const message of readMessages(this.#file(entry, 'output'))) {
      if (message.$case === 'output' && message.value.offset + BigInt(message.value.data.length) > offset)
        yield message.value;
    }
  }

  #load(id: string): void {
    const folder = join(this.#folder, id);
    if (!existsSync(join(folder, 'dispatch'))) return rmSync(folder, { recursive: true, force: true });
    const { message } = AttachResponse.decode(readFileSync(join(folder, 'dispatch')));
    if (message?.$case !== 'dispatch') return;
    const work = existsSync(join(folder, 'work')) ? readFileSync(join(folder, 'work'), 'utf8') : undefined;
    const entry: Entry = {
      dispatch: message.value,
      work,
      outputBytes: 0n,
      finished: undefined,
      offers: [],
      lost: undefined,
    };
    for (const output of readMessages(join(folder, 'output'))) {
      if (output.$case === 'output') entry.outputBytes += BigInt(output.value.data.length);
    }
    for (const result of readMessages(join(folder, 'result'))) {
      if (result.$case === 'finished') entry.finished = result.value;
      if (result.$case === 'lost') entry.lost = result.value.reason;
      if (result.$case === 'offer') {
        if (entry.offers.at(-1)?.last === true) entry.offers = [];
        entry.offers.push(result.value);
      }
    }
    this.entries.set(id, entry);
  }

  #file(entry: Entry, name: string): string {
    return join(this.#folder, entry.dispatch.execution, name);
  }
}

function writeSynced(path: string, bytes: Uint8Array): void {
  const fd = openSync(`${path}.new`, 'w', 0o600);
  try {
    writeSync(fd, bytes);
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
  renameSync(`${path}.new`, path);
}

function appendMessage(path: string, message: Up): void {
  const body = AttachRequest.encode({ seq: 0n, ack: 0n, message }).finish();
  const record = Buffer.allocUnsafe(4 + body.length);
  record.writeUInt32BE(body.length, 0);
  record.set(body, 4);
  appendFileSync(path, record, { mode: 0o600 });
}

/** A record that a killed broker left half-written ends the list; its sender sends it again. */
function* readMessages(path: string): Iterable<Up> {
  const bytes = existsSync(path) ? readFileSync(path) : Buffer.alloc(0);
  for (let at = 0; at + 4 <= bytes.length;) {
    const length = bytes.readUInt32BE(at);
    if (at + 4 + length > bytes.length) return;
    const { message } = AttachRequest.decode(bytes.subarray(at + 4, at + 4 + length));
    if (message !== undefined) yield message;
    at += 4 + length;
  }
}
