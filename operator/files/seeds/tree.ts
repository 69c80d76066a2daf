/**
 * The tree that a seed becomes: one rule for every path, limits held while it grows, contents stored on the way. What is
 * refused here is refused whole; the guards look at the finished tree as at any other diff.
 */
import { canonicalPath, escapeName } from '../../../proto/paths.ts';
import { parseQuantity } from '../../../crds/quantity.ts';
import type { EffectiveSpec } from '../../../crds/types.ts';
import { PermanentError } from '../../errors.ts';
import type { Change } from '../../store/rows.ts';
import type { WorkspaceStore } from '../../store/workspace-store.ts';

export type Limits = Readonly<{ fileBytes: number; totalBytes: number; files: number; entries: number }>;
export type Name = string | Uint8Array;
type Put = Extract<Change, { op: 'put' }>;
type Mutable<T> = { -readonly [K in keyof T]: T[K] };

/** Below: held in memory until there is a batch. Above: streamed. */
const SMALL_BYTES = 256 * 1024;
const BATCH_BYTES = 4 * 1024 * 1024;
const BATCH_FILES = 1_000;
/** All names and targets together: what a tree costs in memory besides its limits. */
const NAMES_BYTES = 64 * 1024 * 1024;
const MAX_TARGET_BYTES = 4_096;

export function limitsOf(files: EffectiveSpec['files']): Limits {
  return {
    fileBytes: parseQuantity(files.maxFileSize) ?? 0,
    totalBytes: parseQuantity(files.maxTotalSize) ?? 0,
    files: files.maxFiles,
    // Folders are no files, but somebody has to remember them.
    entries: files.maxFiles * 2 + 1_000,
  };
}

/** What is fetched first lies on a disk that others share. */
export function withinDisk(limits: Limits, diskBytes = Number.POSITIVE_INFINITY): Limits {
  return { ...limits, totalBytes: Math.min(limits.totalBytes, diskBytes) };
}

export class SeedTree {
  readonly #limits: Limits;
  readonly #store: Pick<WorkspaceStore, 'putBlobs' | 'putBlobStream'>;
  readonly #tenant: string;
  readonly #signal: AbortSignal;
  readonly #entries = new Map<string, Mutable<Put>>();
  #batch: { content: Buffer; entry: Mutable<Put> }[] = [];
  #batchBytes = 0;
  #namesBytes = 0;
  #seen = 0;
  #files = 0;
  #bytes = 0;

  constructor(
    limits: Limits,
    store: Pick<WorkspaceStore, 'putBlobs' | 'putBlobStream'>,
    tenant: string,
    signal: AbortSignal,
  ) {
    this.#limits = limits;
    this.#store = store;
    this.#tenant = tenant;
    this.#signal = signal;
  }

  get files(): number {
    return this.#files;
  }
  get bytes(): number {
    return this.#bytes;
  }

  /** Of that many bytes. A path that comes twice is what it was last. */
  async file(name: Name, executable: boolean, size: number, content: AsyncIterable<Buffer>): Promise<void> {
    const path = pathOf(name);
    if (size > this.#limits.fileBytes)
      throw new PermanentError(
        'FileTooLarge',
        `${escapeName(path)} has ${size} bytes, files.maxFileSize is ${this.#limits.fileBytes}`,
      );
    const entry: Mutable<Put> = { path, op: 'put', kind: 'regular', executable, size, base: 0n };
    this.#add(entry);
    if (size > SMALL_BYTES) {
      const stored = await this.#store.putBlobStream(this.#tenant, exactly(path, size, content), this.#signal);
      entry.sha256 = stored.sha256;
      return;
    }
    const pieces: Buffer[] = [];
    for await (const piece of exactly(path, size, content)) pieces.push(piece);
    this.#batch.push({ content: Buffer.concat(pieces), entry });
    this.#batchBytes += size;
    if (this.#batchBytes >= BATCH_BYTES || this.#batch.length >= BATCH_FILES) await this.#flush();
  }

  /** Kept as its target, never followed: where it leads is a matter for the sandbox. */
  symlink(name: Name, target: Name): void {
    const path = pathOf(name);
    const text = typeof target === 'string' ? target : Buffer.from(target).toString('utf8');
    const bytes = Buffer.byteLength(text);
    const why =
      text === ''
        ? 'has no target'
        : bytes > MAX_TARGET_BYTES
          ? `has a target of ${bytes} bytes, at most ${MAX_TARGET_BYTES} are kept`
          : text.includes('\0') || (typeof target !== 'string' && !Buffer.from(text).equals(target))
            ? 'has a target with a NUL in it, or one that is not UTF-8'
            : undefined;
    if (why !== undefined) throw new PermanentError('PathRefused', `symbolic link ${escapeName(path)} ${why}`);
    this.#namesBytes += bytes;
    this.#add({ path, op: 'put', kind: 'symlink', executable: false, size: bytes, target: text, base: 0n });
  }

  /** Kept where nothing else comes to be in it. */
  directory(name: Name): void {
    const path = pathOf(name);
    if (this.#entries.get(path)?.kind === 'directory') return;
    this.#add({ path, op: 'put', kind: 'directory', executable: false, size: 0, base: 0n });
  }

  /** A second name for a file that came before: two equal files. */
  async hardLink(name: Name, to: Name): Promise<void> {
    const path = pathOf(name);
    const target = this.#entries.get(pathOf(to));
    if (target === undefined || target.kind === 'directory')
      throw new PermanentError(
        'PathRefused',
        `${escapeName(path)} is a hard link to ${escapeName(to)}, which is no file that came before it`,
      );
    if (target.path === path) return;
    const same: Mutable<Put> = { ...target, path };
    this.#add(same);
    // Its content may still wait to be hashed.
    const waiting = this.#batch.find((b) => b.entry === target);
    if (waiting === undefined) return;
    this.#batch.push({ content: waiting.content, entry: same });
    if (this.#batch.length >= BATCH_FILES) await this.#flush();
  }

  /** Of a tree whose contents the tenant has already. */
  copy(entry: Omit<Put, 'op' | 'base'>): void {
    this.#add({ ...entry, op: 'put', base: 0n });
  }

  /** @throws PermanentError PathRefused when a path is below one that is no folder */
  async finish(): Promise<readonly Change[]> {
    await this.#flush();
    // '/' sorts first, so that what is below a path comes right after it.
    const sorted = [...this.#entries.values()].map((entry) => ({ entry, key: entry.path.replaceAll('/', '\0') }));
    sorted.sort((a, b) => (a.key < b.key ? -1 : 1));
    const changes: Change[] = [];
    for (const [i, { entry, key }] of sorted.entries()) {
      const next = sorted[i + 1];
      const isParent = next?.key.startsWith(`${key}\0`) === true;
      if (isParent && entry.kind !== 'directory')
        throw new PermanentError(
          'PathRefused',
          `${escapeName(next.entry.path)} is below ${escapeName(entry.path)}, which is a ${entry.kind === 'symlink' ? 'symbolic link' : 'file'} and no folder`,
        );
      if (!isParent) changes.push(entry);
    }
    return changes;
  }

  #add(entry: Mutable<Put>): void {
    const before = this.#entries.get(entry.path);
    if (before !== undefined && (before.kind === 'directory') !== (entry.kind === 'directory'))
      throw new PermanentError('PathRefused', `${escapeName(entry.path)} is there twice, as a file and as a folder`);
    this.#seen += 1;
    if (before === undefined) this.#namesBytes += Buffer.byteLength(entry.path);
    else this.#count(before, -1);
    this.#count(entry, 1);
    const { files, totalBytes, entries } = this.#limits;
    if (this.#files > files)
      throw new PermanentError('TooManyFiles', `there are more than ${files} files, which is files.maxFiles`);
    if (this.#seen > entries || this.#namesBytes > NAMES_BYTES)
      throw new PermanentError(
        'TooManyFiles',
        `there are more entries (folders, repetitions) or longer names than ${files} files (files.maxFiles) need`,
      );
    if (this.#bytes > totalBytes)
      throw new PermanentError(
        'WorkspaceFull',
        `with ${escapeName(entry.path)} there are ${this.#bytes} bytes, files.maxTotalSize is ${totalBytes}`,
      );
    this.#entries.set(entry.path, entry);
  }

  #count(entry: Put, by: 1 | -1): void {
    if (entry.kind !== 'directory') this.#files += by;
    this.#bytes += by * entry.size;
  }

  async #flush(): Promise<void> {
    const batch = this.#batch;
    this.#batch = [];
    this.#batchBytes = 0;
    if (batch.length === 0) return;
    const hashes = await this.#store.putBlobs(
      this.#tenant,
      batch.map((b) => b.content),
      this.#signal,
    );
    for (const [i, { entry }] of batch.entries()) {
      const sha256 = hashes[i];
      if (sha256 !== undefined) entry.sha256 = sha256;
    }
  }
}

/** @throws PermanentError PathRefused */
export function pathOf(name: Name): string {
  const result = canonicalPath(name);
  if ('refused' in result) throw new PermanentError('PathRefused', result.refused);
  return result.path;
}

/** What says that it has `size` bytes has as many. */
async function* exactly(path: string, size: number, content: AsyncIterable<Buffer>): AsyncIterable<Buffer> {
  let seen = 0;
  for await (const piece of content) {
    seen += piece.length;
    if (seen > size) break;
    yield piece;
  }
  if (seen !== size)
    throw new PermanentError(
      'PathRefused',
      `${escapeName(path)} has ${seen > size ? 'more' : 'fewer'} bytes than the ${size} that were announced`,
    );
}
