/** What an owner does over and over: sync, run, take what comes, settle. Built on `fake-turns.ts`, for one sandbox. */
import { createHash, randomUUID } from 'node:crypto';
import {
  EntryKind,
  OutputStream,
  type Content,
  type Dispatch,
  type Entry,
  type Finished,
  type Skipped,
  type Synced,
} from '../../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { Attached, FakeTurns } from './fake-turns.ts';

export const WINDOW = 1024 * 1024;
export type Ran = Readonly<{
  execution: string;
  finished: Finished;
  stdout: string;
  stderr: string;
  changes: readonly Entry[];
  skipped: readonly Skipped[];
}>;
type Given = Omit<Partial<Dispatch>, 'timeoutMs'> & { timeoutMs?: number };

/** Attached, with a guest, whose tree is empty and version 1. */
export async function ownerOf(turns: FakeTurns, entries: Entry[] = []): Promise<Owner> {
  const owner = new Owner(await (await turns.next()).welcome());
  await owner.guest();
  await owner.sync(entries, { to: 1n });
  return owner;
}

export class Owner {
  attached: Attached;
  version = 0n;
  ignored: string[] = [];
  /** By hash (hex): what the guest may ask for. */
  readonly store = new Map<string, Buffer>();

  constructor(attached: Attached) {
    this.attached = attached;
  }

  async guest(): Promise<void> {
    const { hello } = this.attached;
    await this.attached.until(
      () => ([hello.guest, ...this.attached.all('guest')].at(-1)?.connected === true ? true : undefined),
      'guest',
    );
  }

  /** Whole tree unless `from` is given. Gives what the guest asks for. */
  async sync(entries: Entry[], versions: { from?: bigint; to: bigint }): Promise<Synced> {
    const { from, to } = versions;
    const { attached } = this;
    const before = attached.all('synced').length;
    let wants = attached.all('want').length;
    this.sendSync(entries, versions);
    const synced = await attached.until(
      () => {
        const asked = attached.all('want').slice(wants);
        wants += asked.length;
        for (const { sha256 } of asked) for (const hash of sha256) this.giveContent(Buffer.from(hash));
        return attached.all('synced')[before];
      },
      `synced to ${to} from ${from}`,
      60_000,
    );
    if (synced.error === '') this.version = to;
    return synced;
  }

  /** In pages, as the owner cuts them. */
  sendSync(entries: Entry[], { from, to }: { from?: bigint; to: bigint }, last = true): void {
    const head = { fromVersion: from ?? 0n, toVersion: to, full: from === undefined, ignored: this.ignored };
    let page: Entry[] = [];
    let bytes = 0;
    for (const entry of entries) {
      page.push(entry);
      bytes += entry.path.length * 2 + (entry.inline?.length ?? 0) + 128;
      if (bytes < 128 * 1024) continue;
      this.attached.send({ $case: 'sync', value: { ...head, entries: page, last: false } });
      page = [];
      bytes = 0;
    }
    this.attached.send({ $case: 'sync', value: { ...head, entries: page, last } });
  }

  giveContent(sha256: Buffer): void {
    const content = this.store.get(sha256.toString('hex'));
    if (content === undefined)
      return this.attached.give({ sha256, offset: 0n, data: Buffer.alloc(0), last: true, error: 'not found' });
    for (const piece of piecesOf(sha256, content)) this.attached.give(piece);
  }

  dispatch(command: string, given: Given = {}): string {
    const execution = given.execution ?? randomUUID();
    this.attached.send({
      $case: 'dispatch',
      value: {
        command,
        env: {},
        timeoutMs: 30_000,
        graceMs: 1_000,
        stdin: Buffer.alloc(0),
        baseVersion: this.version,
        outputCredit: BigInt(WINDOW),
        outputLimit: 16n * BigInt(WINDOW),
        collect: { ignored: this.ignored, maxEntries: 500_000, maxFileBytes: 1n << 30n },
        ...given,
        execution,
      },
    });
    return execution;
  }

  /** How it ended, once its diff is whole. Grants credit as output comes. */
  async result(execution: string, deadlineMs = 40_000): Promise<Ran> {
    const { attached } = this;
    let granted = 0;
    const finished = await attached.until(
      () => {
        const received = this.outputOf(execution).length;
        if (received + WINDOW / 2 > granted) {
          granted = received + WINDOW;
          attached.send({ $case: 'credit', value: { execution, outputCredit: BigInt(granted) } });
        }
        const offered = attached.all('offer').some((offer) => offer.execution === execution && offer.last);
        return offered ? attached.all('finished').find((one) => one.execution === execution) : undefined;
      },
      `result of ${execution}`,
      deadlineMs,
    );
    const offers = attached.all('offer').filter((offer) => offer.execution === execution);
    return {
      execution,
      finished,
      stdout: this.outputOf(execution, OutputStream.OUTPUT_STREAM_STDOUT).toString('utf8'),
      stderr: this.outputOf(execution, OutputStream.OUTPUT_STREAM_STDERR).toString('utf8'),
      changes: offers.flatMap((offer) => offer.changes),
      skipped: offers.flatMap((offer) => offer.skipped),
    };
  }

  /** To its end, and settled: what it changed is the next version. */
  async run(command: string, given: Given = {}): Promise<Ran> {
    const ran = await this.result(this.dispatch(command, given));
    this.settle(ran, ran.changes.length > 0 ? this.version + 1n : this.version);
    return ran;
  }

  settle({ execution }: Pick<Ran, 'execution'>, version: bigint, putBack: Entry[] = []): void {
    this.attached.send({ $case: 'settle', value: { execution, version, putBack, last: true } });
    this.version = version;
  }

  /** @throws when frames overlap or leave a gap */
  outputOf(execution: string, stream?: OutputStream): Buffer {
    let at = 0n;
    const pieces: Buffer[] = [];
    for (const output of this.attached.all('output')) {
      if (output.execution !== execution) continue;
      if (output.offset !== at && at !== 0n) throw new Error(`output at ${output.offset}, expected at ${at}`);
      at = output.offset + BigInt(output.data.length);
      if (stream === undefined || output.stream === stream) pieces.push(Buffer.from(output.data));
    }
    return Buffer.concat(pieces);
  }

  /** Whole, from the sandbox; undefined when it can't be had. */
  async take(sha256: Uint8Array): Promise<Buffer | undefined> {
    const hash = Buffer.from(sha256);
    const of = () => this.attached.contents.filter((content) => hash.equals(content.sha256));
    const before = of().length;
    this.attached.send({ $case: 'want', value: { execution: '', sha256: [hash], from: [] } });
    await this.attached.until(
      () =>
        of()
          .slice(before)
          .find(({ last }) => last),
      'content',
    );
    const pieces = of().slice(before);
    return pieces.some(({ error }) => error !== '') ? undefined : Buffer.concat(pieces.map(({ data }) => data));
  }

  /** A file that the guest has to ask for. */
  stored(path: string, content: Buffer | string, executable = false): Entry {
    const bytes = Buffer.from(content);
    const { inline: _, ...entry } = file(path, bytes, executable);
    this.store.set(Buffer.from(entry.sha256).toString('hex'), bytes);
    return entry;
  }
}

export function file(path: string, content: Buffer | string, executable = false): Entry {
  const inline = Buffer.from(content);
  const sha256 = createHash('sha256').update(inline).digest();
  return {
    path,
    kind: EntryKind.ENTRY_KIND_REGULAR,
    executable,
    size: BigInt(inline.length),
    sha256,
    target: '',
    inline,
  };
}

export function link(path: string, target: string): Entry {
  const sha256 = createHash('sha256').update(target).digest();
  return { path, kind: EntryKind.ENTRY_KIND_SYMLINK, executable: false, size: BigInt(target.length), sha256, target };
}

export function folder(path: string): Entry {
  return {
    path,
    kind: EntryKind.ENTRY_KIND_DIRECTORY,
    executable: false,
    size: 0n,
    sha256: Buffer.alloc(32),
    target: '',
  };
}

export function gone(path: string): Entry {
  return { path, kind: EntryKind.ENTRY_KIND_DELETED, executable: false, size: 0n, sha256: Buffer.alloc(0), target: '' };
}

/** What changed, as a person would write it: `+` put, `-` deleted, `*` executable, `/` a folder, `->` a link. */
export function told(changes: readonly Entry[]): string[] {
  return changes
    .map(({ path, kind, executable, target }) => {
      if (kind === EntryKind.ENTRY_KIND_DELETED) return `-${path}`;
      if (kind === EntryKind.ENTRY_KIND_SYMLINK) return `+${path} -> ${target}`;
      return `+${path}${executable ? '*' : ''}${kind === EntryKind.ENTRY_KIND_DIRECTORY ? '/' : ''}`;
    })
    .toSorted();
}

function* piecesOf(sha256: Buffer, content: Buffer): Iterable<Content> {
  for (let at = 0; at === 0 || at < content.length; at += 256 * 1024) {
    const data = content.subarray(at, at + 256 * 1024);
    yield { sha256, offset: BigInt(at), data, last: at + data.length >= content.length, error: '' };
  }
}
