/** The guest's state and its queue of one: what the broker sends in, what is answered. Knows nothing of sockets. */
import { closeSync, constants, fstatSync, openSync, readSync } from 'node:fs';
import {
  EntryKind,
  ExecutionPhase,
  type AttachRequest,
  type Collect,
  type Content,
  type Dispatch,
  type Entry,
  Finished,
  type Settle,
  type Skipped,
  type Sync,
  type TreeOffer,
  type Want,
} from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { compileGlobs } from '../../proto/globs.ts';
import type { Frame } from '../frames.ts';
import { startCommand, type CommandPlace, type Running } from './command.ts';
import { Contents } from './contents.ts';
import { facts } from './facts.ts';
import { entries, findFolder, openRoot, removeTree } from './folders.ts';
import { applyEntries } from './hydrate.ts';
import { scan, TreeTooLarge, type Index, type Indexed } from './scan.ts';

type Up = NonNullable<AttachRequest['message']>;
type SendFrame = (frame: Frame) => Promise<void>;
type SendContent = (content: Content) => Promise<void>;
type Pending = { finished?: Finished; offers: TreeOffer[]; paths: Map<string, string> };

const INLINE_BYTES = 16 * 1024;
const OFFER_BYTES = 192 * 1024;
const PIECE_BYTES = 256 * 1024;
const KINDS = {
  regular: EntryKind.ENTRY_KIND_REGULAR,
  symlink: EntryKind.ENTRY_KIND_SYMLINK,
  directory: EntryKind.ENTRY_KIND_DIRECTORY,
} as const;

export class Guest {
  readonly #place: CommandPlace;
  readonly #work: string;
  readonly #contents: Contents;
  #send: SendFrame | undefined;
  #sendContent: SendContent | undefined;
  #queue: Promise<void> = Promise.resolve();
  #index: Index = new Map();
  /** What the store has, as of `#version`; the scan's result is the tree, this is what differs from it. */
  #version: bigint | undefined;
  #running: Readonly<{ execution: string; running: Running }> | undefined;
  readonly #pending = new Map<string, Pending>();
  readonly #seen = new Set<string>();
  readonly #syncFrames: Entry[] = [];
  readonly #putBack: Entry[] = [];

  constructor(place: CommandPlace, work: string) {
    this.#place = place;
    this.#work = work;
    this.#contents = new Contents(
      (sha256) => void this.#up({ $case: 'want', value: { execution: '', sha256: [...sha256] } }),
    );
  }

  attach(send: SendFrame, sendContent: SendContent): void {
    this.#send = send;
    this.#sendContent = sendContent;
    const running = this.#running?.execution;
    const inventory = [...this.#seen].map((execution) => ({
      execution,
      phase: execution === running ? ExecutionPhase.EXECUTION_PHASE_RUNNING : ExecutionPhase.EXECUTION_PHASE_FINISHED,
      outputBytes: 0n,
    }));
    void send({ $case: 'hello', value: { protocolMin: 1, protocolMax: 1, status: this.#status(), inventory } });
    // What the broker may have missed. It asks for output from where it has it; the rest is short.
    for (const { finished, offers } of this.#pending.values()) {
      if (finished !== undefined) void this.#up({ $case: 'finished', value: finished });
      for (const offer of offers) void this.#up({ $case: 'offer', value: offer });
    }
    this.#contents.askAgain();
  }

  detach(): void {
    this.#send = undefined;
    this.#sendContent = undefined;
  }

  receive(frame: Frame): void {
    if (frame.$case === 'content') return this.#contents.receive(frame.value);
    if (frame.$case !== 'down') return;
    const message = frame.value.message;
    switch (message?.$case) {
      case 'welcome':
        for (const { execution, outputOffset } of message.value.resume) {
          if (this.#running?.execution === execution) this.#running.running.output.resend(outputOffset);
        }
        return;
      case 'credit':
        if (this.#running?.execution === message.value.execution)
          this.#running.running.output.grant(message.value.outputCredit);
        return;
      case 'cancel':
        if (this.#running?.execution === message.value.execution) this.#running.running.cancel();
        return;
      case 'want':
        return void this.#give(message.value);
      case 'sync': {
        // Frames of one sync arrive in order; the last one starts the work.
        this.#syncFrames.push(...message.value.entries);
        if (message.value.last) {
          const entries = this.#syncFrames.splice(0);
          this.#then(() => this.#sync(message.value, entries));
        }
        return;
      }
      case 'dispatch': {
        const dispatch = message.value;
        if (this.#seen.has(dispatch.execution)) return;
        this.#seen.add(dispatch.execution);
        this.#then(() => this.#run(dispatch));
        return;
      }
      case 'collect': {
        const collect = message.value;
        this.#then(() => this.#collect(collect));
        return;
      }
      case 'settle': {
        this.#putBack.push(...message.value.putBack);
        if (message.value.last) {
          const entries = this.#putBack.splice(0);
          this.#then(() => this.#settle(message.value, entries));
        }
        return;
      }
      case 'redirect':
      case undefined:
        return;
    }
  }

  /** One thing at a time; what fails says so itself and never stops what follows. */
  #then(work: () => Promise<void>): void {
    this.#queue = this.#queue.then(work).catch((error: unknown) => {
      this.#version = undefined;
      process.stderr.write(`guest: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
      void this.#up({ $case: 'guest', value: this.#status() });
    });
  }

  #status() {
    return {
      connected: true,
      work: this.#work,
      syncedVersion: this.#version ?? 0n,
      facts: { ...facts(), synced: String(this.#version !== undefined) },
    };
  }

  async #up(message: Up): Promise<void> {
    await this.#send?.({ $case: 'up', value: { seq: 0n, ack: 0n, message } });
  }

  async #sync(sync: Sync, entries: readonly Entry[]): Promise<void> {
    try {
      let wanted = entries;
      if (sync.full) {
        // Everything that is there and not wanted goes, but for what is ignored.
        const kept = new Set(entries.map((entry) => entry.path));
        const gone = this.#unwanted(kept, ignoring(sync.ignored)).map((path) => deleted(path));
        wanted = [...gone, ...entries];
        this.#index = new Map();
      } else if (this.#version !== sync.fromVersion) throw new Error(`the tree is not at version ${sync.fromVersion}`);
      const { written, deleted: removed } = await applyEntries(
        this.#place.root,
        wanted,
        this.#index,
        this.#contents.read,
      );
      this.#version = sync.toVersion;
      await this.#up({ $case: 'synced', value: { version: sync.toVersion, error: '', written, deleted: removed } });
    } catch (error) {
      this.#version = undefined;
      const message = error instanceof Error ? error.message : String(error);
      await this.#up({ $case: 'synced', value: { version: sync.toVersion, error: message, written: 0, deleted: 0 } });
    }
  }

  /** What is there and not wanted. A tree that is too large to be listed is emptied at once, but for what is ignored. */
  #unwanted(kept: ReadonlySet<string>, ignored: (path: string) => boolean): readonly string[] {
    try {
      const there = scan(this.#place.root, new Map(), { ignored, maxEntries: 2_000_000, maxFileBytes: 0n });
      return [...there.index.keys()].filter((path) => !kept.has(path));
    } catch (error) {
      if (!(error instanceof TreeTooLarge)) throw error;
      using top = openRoot(this.#place.root);
      for (const { name } of entries(top)) if (!ignored(`/${name.toString()}/`)) removeTree(top, name);
      return [];
    }
  }

  async #run(dispatch: Dispatch): Promise<void> {
    const ended = await this.#command(dispatch);
    const pending: Pending = { offers: [], paths: new Map() };
    const began = performance.now();
    pending.offers = this.#offer(dispatch.execution, dispatch.baseVersion, dispatch.collect, pending.paths);
    const collectMs = Math.round(performance.now() - began);
    pending.finished = { ...ended, execution: dispatch.execution, collectMs, syncMs: 0 };
    this.#pending.set(dispatch.execution, pending);
    this.#running = undefined;
    await this.#up({ $case: 'finished', value: pending.finished });
    if (this.#version === undefined) await this.#up({ $case: 'guest', value: this.#status() });
    for (const offer of pending.offers) await this.#up({ $case: 'offer', value: offer });
  }

  /** However it ends, it is reported: an owner must never wait for what can't come. */
  async #command(dispatch: Dispatch): Promise<Finished> {
    try {
      const running = startCommand(
        dispatch,
        this.#place,
        (output) => void this.#up({ $case: 'output', value: output }),
      );
      this.#running = { execution: dispatch.execution, running };
      return Finished.fromPartial({ ...(await running.finished) });
    } catch (error) {
      return Finished.fromPartial({ error: error instanceof Error ? error.message : String(error) });
    }
  }

  async #collect(collect: Collect): Promise<void> {
    const pending = this.#pending.get(collect.execution) ?? { offers: [], paths: new Map<string, string>() };
    pending.offers = this.#offer(collect.execution, this.#version ?? 0n, collect.collect, pending.paths);
    this.#pending.set(collect.execution, pending);
    for (const offer of pending.offers) await this.#up({ $case: 'offer', value: offer });
  }

  #offer(
    execution: string,
    baseVersion: bigint,
    options: Dispatch['collect'],
    paths: Map<string, string>,
  ): TreeOffer[] {
    const changes: Entry[] = [];
    let skipped: Skipped[] = [];
    let count = 0;
    try {
      const found = scan(this.#place.root, this.#index, {
        ignored: ignoring(options?.ignored ?? []),
        maxEntries: options?.maxEntries || 2_000_000,
        maxFileBytes: options?.maxFileBytes || 1n << 40n,
      });
      for (const path of found.deleted) changes.push(deleted(path));
      for (const path of found.changed) {
        const entry = found.index.get(path);
        if (entry === undefined) continue;
        changes.push(this.#entry(path, entry));
        if (entry.kind === 'regular') paths.set(entry.sha256.toString('hex'), path);
      }
      this.#index = found.index;
      skipped = [...found.skipped];
      count = found.index.size;
    } catch (error) {
      // Too large, or not to be read: nothing of it is offered, and the tree is put back by a full sync.
      skipped = [{ path: '/', reason: error instanceof Error ? error.message : String(error) }];
      this.#version = undefined;
    }
    return pages(changes).map((page, i, all) => ({
      execution,
      baseVersion,
      changes: page,
      skipped: i === 0 ? skipped : [],
      last: i === all.length - 1,
      files: count,
    }));
  }

  #entry(path: string, of: Indexed): Entry {
    const entry: Entry = {
      path,
      kind: KINDS[of.kind],
      executable: of.executable,
      size: of.size,
      sha256: of.sha256,
      target: of.target ?? '',
    };
    if (of.kind === 'regular' && of.size <= INLINE_BYTES) {
      const content = readFile(this.#place.root, path, Number(of.size));
      if (content !== undefined) entry.inline = content;
    }
    return entry;
  }

  /** The owner has stored it: the tree is that version, but for what is put back. */
  async #settle(settle: Settle, putBack: readonly Entry[]): Promise<void> {
    this.#pending.delete(settle.execution);
    this.#seen.delete(settle.execution);
    if (this.#version !== undefined) this.#version = settle.version;
    if (putBack.length > 0) await applyEntries(this.#place.root, putBack, this.#index, this.#contents.read);
    if (this.#version === undefined) await this.#up({ $case: 'guest', value: this.#status() });
  }

  async #give(want: Want): Promise<void> {
    const paths = [...this.#pending.values()].map((pending) => pending.paths);
    for (const sha256 of want.sha256) {
      const hex = Buffer.from(sha256).toString('hex');
      const path = paths.map((p) => p.get(hex)).find((p) => p !== undefined);
      await this.#giveFile(Buffer.from(sha256), path);
    }
  }

  async #giveFile(sha256: Buffer, path: string | undefined): Promise<void> {
    const fail = (error: string) =>
      this.#sendContent?.({ sha256, offset: 0n, data: Buffer.alloc(0), last: true, error });
    const fd = path === undefined ? undefined : openFile(this.#place.root, path);
    if (fd === undefined) return void (await fail('the file is gone'));
    try {
      let offset = 0n;
      for (;;) {
        const piece = Buffer.allocUnsafe(PIECE_BYTES);
        const read = readSync(fd, piece);
        const last = read < PIECE_BYTES;
        await this.#sendContent?.({ sha256, offset, data: piece.subarray(0, read), last, error: '' });
        offset += BigInt(read);
        if (last) return;
      }
    } catch (error) {
      await fail(error instanceof Error ? error.message : String(error));
    } finally {
      closeSync(fd);
    }
  }
}

/** What is below an ignored folder is never reached, so files are held against the other globs only. */
function ignoring(globs: readonly string[]): (path: string) => boolean {
  const folders = compileGlobs(globs);
  const files = compileGlobs(globs.filter((glob) => !glob.endsWith('/**')));
  return (path) => (path.endsWith('/') ? folders(path) : files(path));
}

function deleted(path: string): Entry {
  return { path, kind: EntryKind.ENTRY_KIND_DELETED, executable: false, size: 0n, sha256: Buffer.alloc(0), target: '' };
}

/** At least one page, each within a frame. */
function pages(changes: readonly Entry[]): Entry[][] {
  const all: Entry[][] = [[]];
  let bytes = 0;
  for (const change of changes) {
    const size = change.path.length * 2 + change.target.length + (change.inline?.length ?? 0) + 128;
    if (bytes + size > OFFER_BYTES && bytes > 0) {
      all.push([]);
      bytes = 0;
    }
    all.at(-1)?.push(change);
    bytes += size;
  }
  return all;
}

function openFile(root: string, path: string): number | undefined {
  const segments = path.slice(1).split('/');
  using top = openRoot(root);
  using parent = findFolder(top, segments.slice(0, -1));
  if (parent === undefined) return undefined;
  try {
    const fd = openSync(
      parent.at(segments.at(-1) ?? ''),
      constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK,
    );
    if (fstatSync(fd).isFile()) return fd;
    closeSync(fd);
    return undefined;
  } catch {
    return undefined;
  }
}

function readFile(root: string, path: string, size: number): Buffer | undefined {
  const fd = openFile(root, path);
  if (fd === undefined) return undefined;
  try {
    const content = Buffer.alloc(size);
    return readSync(fd, content) === size ? content : undefined;
  } finally {
    closeSync(fd);
  }
}
