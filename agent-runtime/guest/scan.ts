/** What is in the tree, and what of it differs from what was there before. */
import { createHash } from 'node:crypto';
import { isUtf8 } from 'node:buffer';
import { closeSync, fchmodSync, fstatSync, lstatSync, readlinkSync, readSync, type Stats } from 'node:fs';
import { canonicalPath, escapeName } from '../../proto/paths.ts';
import { codeOf, listFolder, openFileFd, openFolderFd, openRoot, TEMPORARY } from './folders.ts';

/** What is remembered of a path; size, times and inode say whether it has to be read again. */
export type Indexed = Readonly<{
  kind: 'regular' | 'symlink' | 'directory';
  size: number;
  /** To 0.25 µs, which is what a number holds; `quietSinceMs` makes up for it. */
  mtimeMs: number;
  ctimeMs: number;
  ino: number;
  executable: boolean;
  sha256: Buffer;
  target?: string;
}>;
export type Index = Map<string, Indexed>;
export type Skip = Readonly<{ path: string; reason: string }>;
export type Scan = Readonly<{
  index: Index;
  changed: readonly string[];
  deleted: readonly string[];
  /** Names escaped. What could not be looked into counts as unchanged. */
  skipped: readonly Skip[];
}>;
export type ScanOptions = Readonly<{
  ignored: (path: string) => boolean;
  maxEntries: number;
  maxFileBytes: bigint;
  /** From when on the tree may have been written to since the last scan, by this machine's clock. */
  quietUntilMs: number;
}>;

/** Thrown when there is more than may be listed; the tree is then put back by a full sync. */
export class TreeTooLarge extends Error {}

/** Two clock ticks of the coarsest file system time we meet: within one, a write may leave the times as they were. */
const TICK_MS = 20;
const MAX_DEPTH = 512;
/** Told of at most; the rest is counted. */
const MAX_SKIPPED = 100;
const NOTHING = Buffer.alloc(32);

/**
 * `before` is left as it is; what did not change shares its entries with it. The working directory is moved about
 * meanwhile: a name that is looked up in it costs half of one that is looked up through /proc, and leads through no link
 * either. Nothing else runs until this returns.
 */
export function scan(root: string, before: Index, options: ScanOptions): Scan {
  const index: Index = new Map();
  const changed: string[] = [];
  const skipped: Skip[] = [];
  const unseen: string[] = [];
  let skips = 0;
  let seen = 0;
  let known = 0;

  const skip = (path: string, reason: string) => {
    skips += 1;
    if (skipped.length < MAX_SKIPPED) skipped.push({ path, reason });
  };
  const note = (path: string, entry: Indexed, old: Indexed | undefined) => {
    if (old !== undefined) known += 1;
    index.set(path, entry);
    if (old === undefined || !sameEntry(old, entry)) changed.push(path);
  };
  const keep = (path: string, old: Indexed | undefined) => {
    if (old === undefined) return;
    known += 1;
    index.set(path, old);
  };

  /** The working directory is the folder. @returns how many entries of it count */
  const walk = (fd: number, prefix: string, depth: number): number => {
    const { entries, broken } = listFolder('.');
    seen += entries.length + broken.length;
    if (seen > options.maxEntries)
      throw new TreeTooLarge(`the tree has more than ${options.maxEntries} entries, counted up to ${shown(prefix)}`);
    for (const name of broken) skip(escapeName(name), 'the name is not UTF-8');
    let kept = 0;
    for (const entry of entries) {
      const path = `${prefix}/${entry.name}`;
      if (entry.name.startsWith(TEMPORARY)) skip(shown(path), 'names that begin so are ours');
      else if (options.ignored(path)) continue;
      else if (path.length > 1_000 && 'refused' in canonicalPath(path)) skip(shown(path), 'its path is too long');
      else if (entry.isDirectory()) {
        kept += 1;
        enter(fd, entry.name, path, depth);
      } else if (entry.isFile() || entry.isSymbolicLink()) {
        kept += 1;
        leaf(entry.name, path);
      } else skip(shown(path), 'it is neither file, link nor folder');
    }
    return kept;
  };

  const enter = (parent: number, name: string, path: string, depth: number) => {
    if (depth >= MAX_DEPTH) throw new TreeTooLarge(`folders are nested deeper than ${MAX_DEPTH}: ${shown(path)}`);
    let fd: number | undefined;
    try {
      fd = openFolderFd(name);
      changeTo(fd);
      if (walk(fd, path, depth + 1) === 0) note(path, directory(), before.get(path));
    } catch (error) {
      if (codeOf(error) === '') throw error;
      unseen.push(path);
      skip(shown(path), `it could not be looked into (${codeOf(error)})`);
    } finally {
      if (fd !== undefined) closeSync(fd);
      changeTo(parent);
    }
  };

  const leaf = (name: string, path: string) => {
    const old = before.get(path);
    try {
      const stats = lstatSync(name);
      if (old !== undefined && old.ctimeMs < options.quietUntilMs - TICK_MS && sameStats(old, stats))
        return keep(path, old);
      if (stats.isSymbolicLink()) return note(path, link(name, stats), old);
      // Too large to be taken: offered without having been read, refused by its size.
      if (BigInt(stats.size) > options.maxFileBytes) return note(path, regular(stats, NOTHING), old);
      const hashed = hashFile(name) ?? hashFile(name);
      if (hashed !== undefined) return note(path, hashed, old);
      skip(shown(path), 'it changed while it was read, twice; it is left at its old version');
    } catch (error) {
      // Gone by now: not there.
      if (codeOf(error) === 'ENOENT') return;
      if (!(error instanceof Unreadable) && codeOf(error) === '') throw error;
      skip(shown(path), error instanceof Unreadable ? error.message : `it could not be read (${codeOf(error)})`);
    }
    keep(path, old);
  };

  using top = openRoot(root);
  try {
    changeTo(top.fd);
    walk(top.fd, '', 0);
  } finally {
    process.chdir('/');
  }
  const deleted: string[] = [];
  if (known < before.size) {
    for (const [path, old] of before) {
      if (index.has(path) || options.ignored(path)) continue;
      if (unseen.some((folder) => path === folder || path.startsWith(`${folder}/`))) index.set(path, old);
      else deleted.push(path);
    }
  }
  if (skips > skipped.length) skipped.push({ path: '/', reason: `${skips - skipped.length} more were left out` });
  return { index, changed, deleted, skipped };
}

/** Reads it once; undefined when it changed meanwhile or is no file any more. The path must lead through no link. */
export function hashFile(path: string | Buffer): Indexed | undefined {
  let fd: number;
  try {
    fd = openFileFd(path);
  } catch (error) {
    if (['ENOENT', 'ELOOP', 'ENXIO'].includes(codeOf(error))) return undefined;
    throw error;
  }
  try {
    const stats = fstatSync(fd);
    if (!stats.isFile()) return undefined;
    const hash = createHash('sha256');
    const buffer = Buffer.allocUnsafe(Math.min(1 << 20, Math.max(4_096, stats.size + 1)));
    let bytes = 0;
    for (let read = readSync(fd, buffer); read > 0; read = readSync(fd, buffer)) {
      hash.update(buffer.subarray(0, read));
      bytes += read;
      // Somebody appends as fast as we read.
      if (bytes > stats.size) return undefined;
    }
    const after = fstatSync(fd);
    if (bytes !== stats.size || after.size !== stats.size || after.mtimeMs !== stats.mtimeMs) return undefined;
    return regular(after, hash.digest());
  } finally {
    closeSync(fd);
  }
}

/** As it is now, with a hash that is known: what was just written by us. */
export function indexed(path: string | Buffer, sha256: Buffer): Indexed {
  const stats = lstatSync(path);
  return stats.isSymbolicLink() ? link(path, stats) : regular(stats, sha256);
}

/** One that is empty; it has nothing that could change. */
export function directory(): Indexed {
  return { kind: 'directory', size: 0, mtimeMs: 0, ctimeMs: 0, ino: 0, executable: false, sha256: NOTHING };
}

class Unreadable extends Error {}

function regular({ size, mtimeMs, ctimeMs, ino, mode }: Stats, sha256: Buffer): Indexed {
  return { kind: 'regular', size, mtimeMs, ctimeMs, ino, executable: (mode & 0o111) !== 0, sha256 };
}

function link(path: string | Buffer, { mtimeMs, ctimeMs, ino, size }: Stats): Indexed {
  const target = readlinkSync(path, { encoding: 'buffer' });
  if (!isUtf8(target)) throw new Unreadable('the target of the link is not UTF-8');
  const sha256 = createHash('sha256').update(target).digest();
  return { kind: 'symlink', size, mtimeMs, ctimeMs, ino, executable: false, sha256, target: target.toString('utf8') };
}

function sameEntry(a: Indexed, b: Indexed): boolean {
  return a.kind === b.kind && a.executable === b.executable && a.sha256.equals(b.sha256) && a.target === b.target;
}

function sameStats(old: Indexed, now: Stats): boolean {
  return (
    old.size === now.size &&
    old.mtimeMs === now.mtimeMs &&
    old.ctimeMs === now.ctimeMs &&
    old.ino === now.ino &&
    old.kind === (now.isSymbolicLink() ? 'symlink' : now.isFile() ? 'regular' : undefined)
  );
}

function changeTo(fd: number): void {
  const path = `/proc/self/fd/${fd}`;
  try {
    process.chdir(path);
  } catch (error) {
    // Listed, but not to be entered, by its owner's own choice.
    if (codeOf(error) !== 'EACCES') throw error;
    fchmodSync(fd, (fstatSync(fd).mode & 0o777) | 0o700);
    process.chdir(path);
  }
}

function shown(path: string): string {
  return escapeName(path === '' ? '/' : path);
}
