/** What is in the tree, and what of it differs from what was there before. */
import { createHash } from 'node:crypto';
import { isUtf8 } from 'node:buffer';
import { closeSync, constants, fchmodSync, fstatSync, lstatSync, readlinkSync, readSync, type Stats } from 'node:fs';
import type { Globs } from '../../proto/globs.ts';
import { canonicalPath, escapeName } from '../../proto/paths.ts';
import { codeOf, countBeyond, listFolder, openFileFd, openFolderFd, openRoot, TEMPORARY } from './folders.ts';
import { Index, type FolderIndex, type Indexed } from './index.ts';

export type Skip = Readonly<{ path: string; reason: string }>;
export type Scan = Readonly<{
  index: Index;
  changed: readonly string[];
  deleted: readonly string[];
  /** Names escaped. What could not be looked into counts as unchanged. */
  skipped: readonly Skip[];
}>;
export type ScanOptions = Readonly<{
  ignored: Globs;
  maxEntries: number;
  maxFileBytes: bigint;
  /** Of names and fixed parts of what changed. */
  maxChangedBytes: number;
  /** From when on the tree may have been written to since the last scan, by the file system's clock. */
  quietUntilMs: number;
}>;

/** Thrown when there is more than may be listed; the tree is then put back by a full sync. */
export class TreeTooLarge extends Error {}

/** Two clock ticks of what file systems have for a clock: within one, a write may leave the times as they were. */
const TICK_MS = 20;
/** Of those that keep whole seconds, or every other one. */
const COARSE_TICK_MS = 2_000;
const MAX_DEPTH = 512;
/** Told of at most; the rest is counted. */
const MAX_SKIPPED = 100;
/** Of a change, beside its path. */
const CHANGE_BYTES = 64;
const NOTHING = '\0'.repeat(32);

/**
 * `before` is left as it is; folders in which nothing changed are shared with it. The working directory is moved about
 * meanwhile: a name that is looked up in it costs half of one that is looked up through /proc, and leads through no link
 * either. Nothing else runs until this returns.
 */
export function scan(root: string, before: Index, options: ScanOptions): Scan {
  const index = new Index();
  const changed: string[] = [];
  const deleted: string[] = [];
  const skipped: Skip[] = [];
  const unseen: string[] = [];
  /** Of those that were known: what of them is gone has been said. */
  const walked = new Set<string>();
  let skips = 0;
  let seen = 0;
  let changedBytes = 0;

  const skip = (path: string, reason: string) => {
    skips += 1;
    if (skipped.length < MAX_SKIPPED) skipped.push({ path, reason });
  };
  const differs = (list: string[], path: string) => {
    changedBytes += CHANGE_BYTES + path.length;
    if (changedBytes > options.maxChangedBytes)
      throw new TreeTooLarge(
        `${changed.length + deleted.length} changes at once are more than can be told of (${options.maxChangedBytes} bytes of names are allowed)`,
      );
    list.push(path);
  };
  const tooMany = (prefix: string) =>
    new TreeTooLarge(`the tree has more than ${options.maxEntries} entries, counted up to ${shown(prefix)}`);

  /** The working directory is the folder. @returns whether something of it counts */
  const walk = (fd: number, prefix: string, depth: number): boolean => {
    if (countBeyond(fd, options.maxEntries - seen)) throw tooMany(prefix);
    const { entries, broken } = listFolder('.');
    seen += entries.length + broken.length;
    if (seen > options.maxEntries) throw tooMany(prefix);
    for (const name of broken) skip(escapeName(name), 'the name is not UTF-8');
    const old = before.folders.get(prefix);
    if (old !== undefined) walked.add(prefix);
    const names: string[] = [];
    const found: Indexed[] = [];
    let kept = 0;
    let same = 0;
    const note = (name: string, entry: Indexed | undefined, known: Indexed | undefined) => {
      if (entry === undefined) return;
      if (entry === known) same += 1;
      else if (known === undefined || !sameEntry(known, entry)) differs(changed, `${prefix}/${name}`);
      names.push(name);
      found.push(entry);
    };
    for (const entry of entries) {
      const { name } = entry;
      if (options.ignored.matchesIn(prefix, name)) continue;
      if (prefix === '' && name.startsWith(TEMPORARY)) skip(shown(`${prefix}/${name}`), 'names that begin so are ours');
      else if (prefix.length + name.length > 1_000 && 'refused' in canonicalPath(`${prefix}/${name}`))
        skip(shown(`${prefix}/${name}`), 'its path is too long');
      else if (entry.isDirectory()) {
        kept += 1;
        const empty = enter(fd, name, `${prefix}/${name}`, depth);
        const known = old?.get(name);
        if (empty) note(name, known?.kind === 'directory' ? known : directory(), known);
      } else if (entry.isFile() || entry.isSymbolicLink()) {
        kept += 1;
        const known = old?.get(name);
        note(name, leaf(name, prefix, known), known);
      } else skip(shown(`${prefix}/${name}`), 'it is neither file, link nor folder');
    }
    if (old !== undefined && same === old.size && same === names.length) index.setFolder(prefix, old);
    else {
      const now = new Map<string, Indexed>();
      for (const [i, name] of names.entries()) {
        const entry = found[i];
        if (entry !== undefined) now.set(name, entry);
      }
      index.setFolder(prefix, now);
      if (old !== undefined) gone(prefix, old, now);
    }
    return kept > 0;
  };

  const gone = (prefix: string, old: FolderIndex, now: FolderIndex | undefined) => {
    for (const name of old.keys()) {
      const path = `${prefix}/${name}`;
      if (now?.has(name) !== true && !options.ignored.matches(path)) differs(deleted, path);
    }
  };

  /** @returns whether it is empty */
  const enter = (parent: number, name: string, path: string, depth: number): boolean => {
    if (depth >= MAX_DEPTH) throw new TreeTooLarge(`folders are nested deeper than ${MAX_DEPTH}: ${shown(path)}`);
    let fd: number | undefined;
    try {
      fd = openFolderFd(name);
      changeTo(fd);
      return !walk(fd, path, depth + 1);
    } catch (error) {
      if (codeOf(error) === '') throw error;
      unseen.push(path);
      skip(shown(path), `it could not be looked into (${codeOf(error)})`);
      return false;
    } finally {
      if (fd !== undefined) closeSync(fd);
      changeTo(parent);
    }
  };

  /** Undefined: it is not there, or can't be told of and was not before. */
  const leaf = (name: string, prefix: string, old: Indexed | undefined): Indexed | undefined => {
    try {
      const stats = lstatSync(name);
      if (old !== undefined && sameStats(old, stats) && isSettled(old, options.quietUntilMs)) return old;
      if (stats.isSymbolicLink()) return link(name, stats);
      // Too large to be taken: offered without having been read, refused by its size.
      if (BigInt(stats.size) > options.maxFileBytes && stats.size !== old?.size) return regular(stats, NOTHING);
      const hashed = hashFile(name) ?? hashFile(name);
      if (hashed !== undefined) return hashed;
      skip(shown(`${prefix}/${name}`), 'it changed while it was read, twice; it is left at its old version');
    } catch (error) {
      // Gone by now: not there.
      if (codeOf(error) === 'ENOENT') return undefined;
      if (!(error instanceof Unreadable) && codeOf(error) === '') throw error;
      const why = error instanceof Unreadable ? error.message : `it could not be read (${codeOf(error)})`;
      skip(shown(`${prefix}/${name}`), why);
    }
    return old;
  };

  using top = openRoot(root);
  try {
    changeTo(top.fd);
    walk(top.fd, '', 0);
  } finally {
    process.chdir('/');
  }
  for (const [prefix, old] of before.folders) {
    if (walked.has(prefix)) continue;
    if (unseen.some((folder) => prefix === folder || prefix.startsWith(`${folder}/`))) index.setFolder(prefix, old);
    else gone(prefix, old, undefined);
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
    return hashOpen(fd);
  } finally {
    closeSync(fd);
  }
}

/** The same of one that is open, at its start. */
export function hashOpen(fd: number): Indexed | undefined {
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
  return regular(after, hash.digest('binary'));
}

/** A file as it is now, with a hash that is known: what was just written by us. */
export function regular({ size, mtimeMs, ctimeMs, ino, mode }: Stats, sha256: string): Indexed {
  return { kind: 'regular', size, mtimeMs, ctimeMs, ino, executable: (mode & 0o111) !== 0, sha256 };
}

/** @throws Unreadable when what it points to has no name that can be told */
export function link(path: string | Buffer, { mtimeMs, ctimeMs, ino, size }: Stats): Indexed {
  const target = readlinkSync(path, { encoding: 'buffer' });
  if (!isUtf8(target)) throw new Unreadable('the target of the link is not UTF-8');
  const sha256 = createHash('sha256').update(target).digest('binary');
  return { kind: 'symlink', size, mtimeMs, ctimeMs, ino, executable: false, sha256, target: target.toString('utf8') };
}

/** One that is empty; it has nothing that could change. */
export function directory(): Indexed {
  return { kind: 'directory', size: 0, mtimeMs: 0, ctimeMs: 0, ino: 0, executable: false, sha256: NOTHING };
}

class Unreadable extends Error {}

/** It was at rest when the tree could be written to again, so that any change since shows in its times. */
export function isSettled({ ctimeMs }: Pick<Indexed, 'ctimeMs'>, quietUntilMs: number): boolean {
  return ctimeMs < quietUntilMs - (Number.isInteger(ctimeMs / 1_000) ? COARSE_TICK_MS : TICK_MS);
}

function sameEntry(a: Indexed, b: Indexed): boolean {
  return a.kind === b.kind && a.executable === b.executable && a.sha256 === b.sha256 && a.target === b.target;
}

function sameStats(old: Indexed, now: Stats): boolean {
  return (
    old.size === now.size &&
    old.mtimeMs === now.mtimeMs &&
    old.ctimeMs === now.ctimeMs &&
    old.ino === now.ino &&
    old.kind === kindOf(now.mode)
  );
}

function kindOf(mode: number): Indexed['kind'] | undefined {
  const type = mode & constants.S_IFMT;
  return type === constants.S_IFREG ? 'regular' : type === constants.S_IFLNK ? 'symlink' : undefined;
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
