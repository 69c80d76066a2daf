/**
 * An export becomes a workspace. It is read once, in order, with a few MB of it in memory: contents become blobs, rows are
 * kept aside, and only when the last byte was read and everything fits do they become the workspace's, in one transaction.
 * A crash before leaves it empty; the next import sweeps away what was kept aside.
 */
import { createHash } from 'node:crypto';
import { escapeName } from '../../../proto/paths.ts';
import { PermanentError } from '../../errors.ts';
import type { ImportFinish, ImportKind, ImportStore } from '../../store/import-store.ts';
import type { Change, Lease, WorkspaceRow } from '../../store/rows.ts';
import type { WorkspaceStore } from '../../store/workspace-store.ts';
import {
  EXPORT_FORMAT,
  exportHeader,
  HEADER,
  manifestLine,
  type ExportHeader,
  type LineKind,
  type LineOf,
} from '../export/format.ts';
import { runGuards, type Refusal, type Rules } from '../guards.ts';
import { broken } from './broken.ts';
import { checkLine, type Progress as Order } from './check-line.ts';
import { linesOf } from './lines.ts';
import { Places } from './members.ts';
import { tarMembers, type TarMember } from './tar-reader.ts';

export type ImportOptions = Readonly<{
  /** Everything is read and checked, nothing is kept. */
  dryRun?: boolean;
  /** The head alone, also of an export that has the history: what the guards refuse is left out and told. */
  headOnly?: boolean;
  actor?: string;
  /** The answer is kept for it. */
  idempotency?: ImportFinish['idempotency'];
  onProgress?: (progress: ImportProgress) => void;
}>;
export type ImportProgress = Readonly<{ bytes: number; files: number }>;
export type ImportResult = Readonly<{
  /** The head; of a dry run, what it would be. */
  version: bigint;
  files: number;
  bytes: number;
  versions: number;
  events: number;
  turns: number;
  kv: number;
  /** The first 100; `refusedCount` has them all. */
  refused: readonly Refusal[];
  refusedCount: number;
}>;
export type ImportOwner = Readonly<{ workspace: WorkspaceRow; lease: Lease }>;

/** The Idempotency-Key of an import of this upload. */
export function importKey(upload: string): string {
  return `import ${upload}`;
}

const MAX_HEADER_BYTES = 16 * 1024;
/** A content up to this comes whole; larger ones are streamed into the store. */
const SMALL_BYTES = 1024 * 1024;
const BATCH = { bytes: 4 * 1024 * 1024, members: 1_000 } as const;
/** Of rows that go over at once. */
const STAGE = { bytes: 1024 * 1024, rows: 1_000 } as const;
const REFUSED_SHOWN = 100;

/**
 * Runs on the owner, under its lease.
 * @throws PermanentError Conflict when the workspace is not empty, BadRequest for what is no whole export, PathRefused, or
 *   the guards' reason when a file of an import with history is refused; FenceLost. Whatever it throws, the workspace is empty.
 */
export async function importWorkspace(
  store: WorkspaceStore & ImportStore,
  owner: ImportOwner,
  source: AsyncIterable<Buffer>,
  options: ImportOptions = {},
  signal?: AbortSignal,
): Promise<ImportResult> {
  const id = await store.beginImport(owner.lease, signal);
  try {
    return await new Import(store, owner, id, options, signal).run(source);
  } catch (error) {
    await store.dropImport(owner.workspace.id, id).catch(() => undefined);
    throw error;
  }
}

type Held = Readonly<{ change?: Change & { op: 'put' }; content?: Buffer; sha256?: string; size: number }>;

/** One run of it: what was read, and what of it waits to be written together. */
class Import {
  readonly #store: WorkspaceStore & ImportStore;
  readonly #owner: ImportOwner;
  readonly #id: string;
  readonly #options: ImportOptions;
  readonly #signal: AbortSignal | undefined;
  readonly #rules: Rules;
  readonly #places = new Places();
  readonly #manifest = createHash('sha256');
  #manifestBytes = 0;
  #header: ExportHeader | undefined;
  /** What is taken of it. */
  #headOnly = false;
  #held: Held[] = [];
  #heldBytes = 0;
  readonly #staged: Partial<Record<ImportKind, number>> = {};
  readonly #waiting = new Map<ImportKind, { lines: object[]; bytes: number }>();
  #files = 0;
  #bytes = 0;
  #members = 0;
  #read = 0;
  readonly #refused: Refusal[] = [];
  #refusedCount = 0;
  readonly #paths: string[] = [];
  #order: Order = {};

  constructor(
    store: WorkspaceStore & ImportStore,
    owner: ImportOwner,
    id: string,
    options: ImportOptions,
    signal: AbortSignal | undefined,
  ) {
    this.#store = store;
    this.#owner = owner;
    this.#id = id;
    this.#options = options;
    this.#signal = signal;
    // What commands may not touch has to come from somewhere (decision 12): the scope is no matter of an import.
    const { writable: _scope, ...rules } = owner.workspace.effective.files;
    this.#rules = rules;
  }

  async run(source: AsyncIterable<Buffer>): Promise<ImportResult> {
    let manifest: string | undefined;
    for await (const member of tarMembers(source, this.#signal)) {
      this.#signal?.throwIfAborted();
      const { name, size } = member.header;
      if (manifest !== undefined) throw broken(`${escapeName(name)} comes after its manifest`);
      const place = this.#places.next(member);
      let sha256: string;
      switch (place.kind) {
        case 'header':
          sha256 = await this.#takeHeader(member);
          break;
        case 'manifest':
          if (size !== this.#manifestBytes) throw broken('its manifest does not list what it has');
          manifest = await hashed(member.content);
          continue;
        case 'file':
          sha256 = await this.#takeFile(place.path, member);
          break;
        case 'blob':
          sha256 = await this.#takeContent(member, undefined);
          if (sha256 !== place.sha256) throw broken(`${name} has the hash ${sha256}`);
          break;
        case 'requests':
          if (size > 0) throw broken(`${name} has requests, which this release does not know`);
          sha256 = await hashed(member.content);
          break;
        case 'lines':
          sha256 = await this.#takeLines(place.of, member);
      }
      const { type, mode } = member.header;
      const line = manifestLine({ name, type, executable: type === 'file' && (mode & 0o111) !== 0, sha256 });
      this.#manifest.update(line);
      this.#manifestBytes += Buffer.byteLength(line);
      this.#read += size;
    }
    await this.#flush();
    if (manifest === undefined) throw broken('it ends before its manifest: it was cut');
    if (manifest !== this.#manifest.digest('hex')) throw broken('what it has is not what its manifest says');
    for (const kind of this.#waiting.keys()) await this.#stage(kind);
    return await this.#finish(manifest);
  }

  async #finish(manifest: string): Promise<ImportResult> {
    const header = this.#header;
    if (header === undefined) throw broken(`it does not begin with ${HEADER}`);
    const dryRun = this.#options.dryRun ?? false;
    const counts = {
      versions: this.#staged.version ?? (this.#headOnly && this.#files > 0 ? 1 : 0),
      events: this.#staged.event ?? 0,
      turns: this.#staged.turn ?? 0,
      kv: this.#staged.kv ?? 0,
      refused: this.#refused,
      refusedCount: this.#refusedCount,
    };
    const [first] = this.#refused;
    if (first !== undefined && !this.#headOnly && !dryRun)
      throw new PermanentError(
        first.reason,
        `${this.#refusedCount} files are refused, and a history can't be had without them: ${first.message}; raise the limit, or import the head alone`,
      );
    const { idempotency, actor } = this.#options;
    const { head, files, bytes } = await this.#store.finishImport(
      this.#owner.lease,
      this.#id,
      {
        head: header.version,
        seq: header.seq,
        headOnly: this.#headOnly,
        dryRun,
        rows: this.#staged,
        event: {
          type: 'files.committed',
          v: 1,
          ...(actor === undefined ? {} : { actor }),
          payload: {
            origin: 'import',
            ...{ created: this.#files, changed: 0, deleted: 0, paths: this.#paths },
            ...(this.#refusedCount === 0 ? {} : { refused: this.#refusedCount }),
            export: { ...header, manifestSha256: manifest },
          },
        },
        ...(idempotency === undefined || dryRun
          ? {}
          : { idempotency: { ...idempotency, response: { ...idempotency.response, ...counts } } }),
      },
      this.#signal,
    );
    return { version: head, files: Number(files), bytes: Number(bytes), ...counts };
  }

  async #takeHeader({ header, content }: TarMember): Promise<string> {
    if (header.size > MAX_HEADER_BYTES) throw broken(`${HEADER} has ${header.size} bytes`);
    const pieces: Buffer[] = [];
    for await (const piece of content) pieces.push(piece);
    const bytes = Buffer.concat(pieces);
    let value: unknown;
    try {
      value = JSON.parse(bytes.toString('utf8'));
    } catch {
      throw broken(`${HEADER} is not JSON`);
    }
    const format = typeof value === 'object' && value !== null && 'format' in value ? value.format : undefined;
    if (typeof format === 'number' && format > EXPORT_FORMAT)
      throw broken(`its format is ${format}, this release knows ${EXPORT_FORMAT}; import with a newer one`);
    const result = exportHeader.safeParse(value);
    if (!result.success || format !== EXPORT_FORMAT) throw broken(`${HEADER} is not as this release knows it`);
    this.#header = result.data;
    this.#headOnly = result.data.headOnly || (this.#options.headOnly ?? false);
    this.#places.headOnly = result.data.headOnly;
    return createHash('sha256').update(bytes).digest('hex');
  }

  async #takeFile(path: string, member: TarMember): Promise<string> {
    const { type, mode, size, linkname } = member.header;
    this.#members += 1;
    // What follows would be refused file by file; an archive of a million of them is not read to its end for that.
    if (this.#members > 2 * this.#rules.maxFiles + 1_000)
      throw new PermanentError(
        'TooManyFiles',
        `it has more than ${this.#members - 1} files, files.maxFiles is ${this.#rules.maxFiles}`,
      );
    const base = { path, op: 'put', base: 0n } as const;
    if (type === 'file')
      return await this.#takeContent(member, { ...base, kind: 'regular', executable: (mode & 0o111) !== 0, size });
    if (type === 'symlink' && (linkname === '' || linkname.includes('\0') || Buffer.byteLength(linkname) > 4_096))
      throw broken(`the target of the link ${escapeName(path)} is none`);
    const change: Held['change'] =
      type === 'symlink'
        ? { ...base, kind: 'symlink', executable: false, size: Buffer.byteLength(linkname), target: linkname }
        : { ...base, kind: 'directory', executable: false, size: 0 };
    await this.#hold({ change, size: change.size });
    return createHash('sha256').update(linkname).digest('hex');
  }

  /** @returns its hash */
  async #takeContent({ header, content }: TarMember, change: Held['change']): Promise<string> {
    const { size } = header;
    if (size <= SMALL_BYTES) {
      const pieces: Buffer[] = [];
      for await (const piece of content) pieces.push(piece);
      const bytes = Buffer.concat(pieces);
      const sha256 = createHash('sha256').update(bytes).digest('hex');
      await this.#hold({ ...(change === undefined ? {} : { change }), content: bytes, sha256, size });
      return sha256;
    }
    await this.#flush();
    const isRefused = change !== undefined && this.#guarded([change]).length === 0;
    const isKept = !this.#isDry && !isRefused && (change !== undefined || !this.#headOnly);
    const sha256 = isKept
      ? (await this.#store.putBlobStream(this.#owner.workspace.tenant, content, this.#signal)).sha256.toString('hex')
      : await hashed(content);
    if (change === undefined || !isRefused || !this.#headOnly) await this.#add(change, sha256, size);
    return sha256;
  }

  async #hold(held: Held): Promise<void> {
    this.#held.push(held);
    this.#heldBytes += held.content?.length ?? 0;
    if (this.#heldBytes >= BATCH.bytes || this.#held.length >= BATCH.members) await this.#flush();
  }

  /** Guards, then contents, then rows: what is refused is stored nowhere. */
  async #flush(): Promise<void> {
    const held = this.#held;
    this.#held = [];
    this.#heldBytes = 0;
    if (held.length === 0) return;
    const allowed = new Set<Change>(
      this.#guarded(held.flatMap(({ change }) => (change === undefined ? [] : [change]))),
    );
    const kept = held.filter(({ change }) => (change === undefined ? !this.#headOnly : allowed.has(change)));
    const contents = kept.flatMap(({ content }) => (content === undefined ? [] : [content]));
    if (!this.#isDry && contents.length > 0)
      await this.#store.putBlobs(this.#owner.workspace.tenant, contents, this.#signal);
    // With a history the rows must be whole to be checked; they come to nothing when a file is refused.
    for (const { change, sha256, size } of this.#headOnly ? kept : held) await this.#add(change, sha256, size);
    this.#options.onProgress?.({ bytes: this.#read, files: this.#members });
  }

  /** Those that may be; the others are noted. */
  #guarded(changes: readonly Change[]): readonly Change[] {
    const before = { files: this.#files, bytes: this.#bytes, sizeOf: () => undefined };
    const { commit, refused } = runGuards(changes, before, this.#rules, { mayDelete: true });
    for (const change of commit) {
      if (change.op !== 'put') continue;
      this.#files += 1;
      this.#bytes += change.size;
      if (this.#paths.length < 20 && change.kind !== 'directory') this.#paths.push(change.path);
    }
    this.#refusedCount += refused.length;
    this.#refused.push(...refused.slice(0, REFUSED_SHOWN - this.#refused.length));
    return commit;
  }

  async #add(change: Held['change'], sha256: string | undefined, size: number): Promise<void> {
    if (sha256 !== undefined && !this.#headOnly) await this.#row('content', { sha256, size });
    if (change === undefined) return;
    const { path, kind, executable, target } = change;
    await this.#row('file', { path, kind, executable, size, sha256, target });
  }

  async #takeLines(kind: LineKind, { header, content }: TarMember): Promise<string> {
    await this.#flush();
    const hash = createHash('sha256');
    const of = this.#header;
    if (of === undefined) throw broken(`it does not begin with ${HEADER}`);
    const isTaken = kind === 'kv' || !this.#headOnly;
    for await (const line of linesOf(kind, header.name, heard(content, hash))) {
      this.#order = checkLine(kind, line, of, this.#order);
      if (isTaken) await this.#row(KINDS[kind], line);
    }
    return hash.digest('hex');
  }

  async #row(kind: ImportKind, line: object | LineOf<LineKind>): Promise<void> {
    const waiting = this.#waiting.get(kind) ?? { lines: [], bytes: 0 };
    this.#waiting.set(kind, waiting);
    waiting.lines.push(line);
    waiting.bytes += lengthOf(line);
    this.#staged[kind] = (this.#staged[kind] ?? 0) + 1;
    if (waiting.lines.length >= STAGE.rows || waiting.bytes >= STAGE.bytes) await this.#stage(kind);
  }

  async #stage(kind: ImportKind): Promise<void> {
    const lines = this.#waiting.get(kind)?.lines ?? [];
    this.#waiting.delete(kind);
    await this.#store.stageImport(this.#owner.lease, this.#id, kind, lines, this.#signal);
  }

  get #isDry(): boolean {
    return this.#options.dryRun ?? false;
  }
}

const KINDS: Readonly<Record<LineKind, ImportKind>> = {
  history: 'history',
  versions: 'version',
  events: 'event',
  executions: 'execution',
  kv: 'kv',
  sessions: 'session',
  turns: 'turn',
};

/** About, and quickly. */
function lengthOf(line: object): number {
  return JSON.stringify(line).length;
}

async function hashed(content: AsyncIterable<Buffer>): Promise<string> {
  const hash = createHash('sha256');
  for await (const piece of content) hash.update(piece);
  return hash.digest('hex');
}

async function* heard(content: AsyncIterable<Buffer>, hash: ReturnType<typeof createHash>): AsyncIterable<Buffer> {
  for await (const piece of content) {
    hash.update(piece);
    yield piece;
  }
}
