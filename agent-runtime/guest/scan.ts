/** What is in the tree, and what of it differs from what was there before. */
import { createHash } from 'node:crypto';
import { isUtf8 } from 'node:buffer';
import {
  closeSync,
  constants,
  fstatSync,
  lstatSync,
  openSync,
  readlinkSync,
  readSync,
  type BigIntStats,
} from 'node:fs';
import { escapeName, MAX_SEGMENT_BYTES, canonicalPath } from '../../proto/paths.ts';
import { codeOf, entries, openFolder, openRoot, TEMPORARY, type Folder } from './folders.ts';

/** What is remembered of a path; the first five say whether it has to be read again. */
export type Indexed = Readonly<{
  kind: 'regular' | 'symlink' | 'directory';
  size: bigint;
  mtimeNs: bigint;
  ctimeNs: bigint;
  ino: bigint;
  executable: boolean;
  sha256: Buffer;
  target?: string;
  /** Written so shortly before it was looked at that a further write might show the same times. */
  racy: boolean;
}>;
export type Index = Map<string, Indexed>;
export type Scan = Readonly<{
  index: Index;
  changed: readonly string[];
  deleted: readonly string[];
  skipped: readonly Readonly<{ path: string; reason: string }>[];
}>;
export type ScanOptions = Readonly<{ ignored: (path: string) => boolean; maxEntries: number; maxFileBytes: bigint }>;

/** Thrown when there is more than may be listed; the tree is then put back by a full sync. */
export class TreeTooLarge extends Error {}

/** A clock tick of the coarsest file system time we meet is 10 ms. */
const RACY_NS = 20_000_000n;
const MAX_DEPTH = 512;
const NOTHING = Buffer.alloc(32);
const LSTAT = { bigint: true, throwIfNoEntry: false } as const;

/** `before` is left as it is. Paths with no change share their entries with it. */
export function scan(root: string, before: Index, options: ScanOptions): Scan {
  const index: Index = new Map();
  const changed: string[] = [];
  const skipped: { path: string; reason: string }[] = [];
  const nowNs = BigInt(Date.now()) * 1_000_000n;
  let seen = 0;

  const skip = (path: string, reason: string) => {
    if (skipped.length < 100) skipped.push({ path, reason });
  };
  const note = (path: string, entry: Indexed, old: Indexed | undefined) => {
    index.set(path, entry);
    const same =
      old !== undefined &&
      old.kind === entry.kind &&
      old.executable === entry.executable &&
      old.sha256.equals(entry.sha256) &&
      old.target === entry.target;
    if (!same) changed.push(path);
  };

  const walk = (at: Folder, prefix: string, depth: number): number => {
    let kept = 0;
    const inner: string[] = [];
    // Names are then looked up from the folder itself: as safe as by its descriptor, and three times as fast.
    process.chdir(`/proc/self/fd/${at.fd}`);
    for (const entry of entries(at)) {
      seen += 1;
      if (seen > options.maxEntries) throw new TreeTooLarge(`the tree has more than ${options.maxEntries} entries`);
      const { name } = entry;
      if (typeof name !== 'string') {
        skip(escapeName(name), 'the name is not UTF-8');
        continue;
      }
      if (name.startsWith(TEMPORARY)) continue;
      const path = `${prefix}/${name}`;
      if (path.length > MAX_SEGMENT_BYTES / 4) {
        const allowed = canonicalPath(path);
        if ('refused' in allowed) {
          skip(escapeName(path), allowed.refused);
          continue;
        }
      }
      if (entry.isDirectory()) {
        if (options.ignored(`${path}/`)) continue;
        inner.push(name);
      } else if (options.ignored(path)) continue;
      else if (entry.isFile()) file(at, name, path);
      else if (entry.isSymbolicLink()) link(name, path);
      else {
        skip(escapeName(path), 'it is neither file, link nor folder');
        continue;
      }
      kept += 1;
    }
    for (const name of inner) {
      const path = `${prefix}/${name}`;
      if (depth >= MAX_DEPTH) throw new TreeTooLarge(`folders are nested deeper than ${MAX_DEPTH}`);
      using folder = openFolder(at, name);
      if (walk(folder, path, depth + 1) === 0) {
        note(path, directory(fstatSync(folder.fd, { bigint: true })), before.get(path));
      }
    }
    return kept;
  };

  const file = (at: Folder, name: string, path: string) => {
    const stats = lstatSync(name, LSTAT);
    if (stats === undefined) return;
    const old = before.get(path);
    if (old !== undefined && !old.racy && sameStats(old, stats)) return void index.set(path, old);
    if (stats.size > options.maxFileBytes) {
      // Too large to be taken: offered without having been read, refused by its size.
      return note(path, { ...base('regular', stats, nowNs), executable: isExecutable(stats), sha256: NOTHING }, old);
    }
    for (let attempt = 0; attempt < 2; attempt += 1) {
      const hashed = hashFile(at, name, nowNs);
      if (hashed !== undefined) return note(path, hashed, old);
    }
    if (old !== undefined) index.set(path, old);
    skip(escapeName(path), 'it changed while it was read, twice; it is left at its old version');
  };

  const link = (name: string, path: string) => {
    const stats = lstatSync(name, LSTAT);
    if (stats === undefined) return;
    const old = before.get(path);
    if (old !== undefined && !old.racy && sameStats(old, stats)) return void index.set(path, old);
    const target = readlinkSync(name, { encoding: 'buffer' });
    if (!isUtf8(target)) return skip(escapeName(path), 'the target of the link is not UTF-8');
    const sha256 = createHash('sha256').update(target).digest();
    note(path, { ...base('symlink', stats, nowNs), executable: false, sha256, target: target.toString('utf8') }, old);
  };

  using top = openRoot(root);
  try {
    walk(top, '', 0);
  } finally {
    process.chdir('/');
  }
  const deleted = [...before.keys()].filter(
    (path) => !index.has(path) && !options.ignored(path) && !options.ignored(`${path}/`),
  );
  return { index, changed, deleted, skipped };
}

/** Reads it once; undefined when it changed meanwhile or is no file any more. */
export function hashFile(at: Folder, name: string, nowNs: bigint): Indexed | undefined {
  let fd: number;
  try {
    fd = openSync(at.at(name), constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  } catch (error) {
    if (['ENOENT', 'ELOOP', 'ENXIO'].includes(codeOf(error))) return undefined;
    if (codeOf(error) === 'EACCES') return undefined;
    throw error;
  }
  try {
    const stats = fstatSync(fd, { bigint: true });
    if (!stats.isFile()) return undefined;
    const hash = createHash('sha256');
    const buffer = Buffer.allocUnsafe(Math.min(1 << 20, Math.max(4_096, Number(stats.size))));
    for (let read = readSync(fd, buffer); read > 0; read = readSync(fd, buffer)) hash.update(buffer.subarray(0, read));
    const after = fstatSync(fd, { bigint: true });
    if (after.size !== stats.size || after.mtimeNs !== stats.mtimeNs) return undefined;
    return { ...base('regular', after, nowNs), executable: isExecutable(after), sha256: hash.digest() };
  } finally {
    closeSync(fd);
  }
}

/** The entry as it is now, without reading it: for what was just written by us, with this hash. */
export function indexed(stats: BigIntStats, sha256: Buffer, target?: string): Indexed {
  const nowNs = BigInt(Date.now()) * 1_000_000n;
  if (stats.isDirectory()) return directory(stats);
  if (target !== undefined) return { ...base('symlink', stats, nowNs), executable: false, sha256, target };
  return { ...base('regular', stats, nowNs), executable: isExecutable(stats), sha256 };
}

function base(kind: Indexed['kind'], stats: BigIntStats, nowNs: bigint) {
  const { size, mtimeNs, ctimeNs, ino } = stats;
  return { kind, size, mtimeNs, ctimeNs, ino, racy: nowNs - ctimeNs < RACY_NS };
}

function directory(stats: BigIntStats): Indexed {
  return { ...base('directory', stats, 0n), size: 0n, racy: false, executable: false, sha256: NOTHING };
}

function sameStats(old: Indexed, now: BigIntStats): boolean {
  return (
    old.size === now.size &&
    old.mtimeNs === now.mtimeNs &&
    old.ctimeNs === now.ctimeNs &&
    old.ino === now.ino &&
    old.executable === isExecutable(now)
  );
}

function isExecutable(stats: BigIntStats): boolean {
  return (stats.mode & 0o111n) !== 0n;
}
