/** Makes the tree equal what the store says. A file appears whole, by rename; the head wins over what is in the way. */
import { createHash, randomBytes } from 'node:crypto';
import {
  closeSync,
  constants,
  fchmodSync,
  fstatSync,
  lstatSync,
  openSync,
  readlinkSync,
  readSync,
  renameSync,
  symlinkSync,
  writeSync,
  type Stats,
} from 'node:fs';
import { EntryKind, type Entry } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { canonicalPath } from '../../proto/paths.ts';
import { batches, type Contents, type Wanted } from './contents.ts';
import { codeOf, findFolder, makeFolder, openFileFd, type Folder } from './folders.ts';
import type { Index } from './index.ts';
import { openPlaces, type Places } from './places.ts';
import { removeFolder, removeTree, unlinked } from './removal.ts';
import { directory, hashOpen, link, regular } from './scan.ts';
import { stage } from './staging.ts';

export type Applied = { written: number; deleted: number };
type Missing = Wanted & { entries: Entry[] };

/** Below this a content is written in one go, or not at all. */
const LARGE_BYTES = 1024 * 1024;
const PIECE_BYTES = 256 * 1024;

/** Applies entries and keeps `index` true to what is on disk. @throws Error naming the path that could not be written */
export async function applyEntries(
  rootPath: string,
  entries: readonly Entry[],
  index: Index,
  contents: Contents,
): Promise<Applied> {
  const done: Applied = { written: 0, deleted: 0 };
  using places = openPlaces(rootPath, index);
  // Deletions first: what stands where a folder is needed is then gone.
  for (const entry of entries) {
    if (entry.kind === EntryKind.ENTRY_KIND_DELETED && deleteEntry(places, entry.path, index)) done.deleted += 1;
  }
  /** By hash: one content may stand at several paths. */
  const missing = new Map<string, Missing>();
  for (const entry of entries) {
    if (entry.kind === EntryKind.ENTRY_KIND_DELETED || isCurrent(places, entry, index)) continue;
    done.written += 1;
    if (entry.kind !== EntryKind.ENTRY_KIND_REGULAR) put(places, entry, index);
    else if (entry.inline !== undefined) putWhole(places, entry, index, entry.inline);
    else {
      const sha256 = Buffer.from(entry.sha256);
      const hex = sha256.toString('hex');
      const found = missing.get(hex) ?? { sha256, size: Number(entry.size), from: 0, entries: [] };
      found.entries.push(entry);
      missing.set(hex, found);
    }
  }
  const small = [...missing.values()].filter(({ size }) => size < LARGE_BYTES);
  for (const batch of batches(small, ({ size }) => size)) {
    using _ = contents.want(batch);
    for (const { sha256, entries: of } of batch) {
      const pieces: Buffer[] = [];
      for await (const piece of contents.read(sha256)) pieces.push(piece);
      const content = pieces.length === 1 && pieces[0] ? pieces[0] : Buffer.concat(pieces);
      for (const entry of of) putWhole(places, entry, index, content);
    }
  }
  for (const one of missing.values()) if (one.size >= LARGE_BYTES) await putLarge(places, one, index, contents);
  return done;
}

/** What is on disk is what is wanted, by content; only the executable bit may have to follow. */
function isCurrent(places: Places, entry: Entry, index: Index): boolean {
  const segments = segmentsOf(entry.path);
  const parent = places.find(segments);
  if (parent === undefined) return false;
  const path = parent.at(segments.at(-1) ?? '');
  const stats = lstatSync(path, { throwIfNoEntry: false });
  if (stats === undefined) return false;
  if (entry.kind === EntryKind.ENTRY_KIND_SYMLINK) {
    if (!stats.isSymbolicLink()) return false;
    if (!readlinkSync(path, { encoding: 'buffer' }).equals(Buffer.from(entry.target))) return false;
    places.make(segments);
    index.set(entry.path, link(path, stats));
    return true;
  }
  if (entry.kind !== EntryKind.ENTRY_KIND_REGULAR || !stats.isFile() || BigInt(stats.size) !== entry.size) return false;
  const fd = openOrGone(path);
  if (fd === undefined) return false;
  try {
    const found = hashOpen(fd);
    if (found === undefined || found.sha256 !== Buffer.from(entry.sha256).toString('latin1')) return false;
    // By its descriptor: by its name it might be another file by now.
    if (found.executable !== entry.executable) fchmodSync(fd, entry.executable ? 0o755 : 0o644);
    places.make(segments);
    index.set(entry.path, regular(fstatSync(fd), found.sha256));
    return true;
  } finally {
    closeSync(fd);
  }
}

function openOrGone(path: string | Buffer): number | undefined {
  try {
    return openFileFd(path);
  } catch (error) {
    if (['ENOENT', 'ELOOP', 'ENXIO'].includes(codeOf(error))) return undefined;
    throw error;
  }
}

/** A folder or a link. */
function put(places: Places, entry: Entry, index: Index): void {
  const segments = segmentsOf(entry.path);
  if (entry.kind === EntryKind.ENTRY_KIND_DIRECTORY) {
    places.make(segments);
    makeFolder(places.root, segments)[Symbol.dispose]();
    places.forget();
    index.set(entry.path, directory());
    return;
  }
  if (entry.kind !== EntryKind.ENTRY_KIND_SYMLINK) throw new Error(`${entry.path} is of kind ${entry.kind}`);
  const parent = places.make(segments);
  const name = segments.at(-1) ?? '';
  const temporary = temporaryName();
  symlinkSync(entry.target, places.staging().at(temporary));
  replace(places, places.staging(), temporary, parent, name);
  const stats = lstatSync(parent.at(name));
  if (stats.isSymbolicLink()) index.set(entry.path, link(parent.at(name), stats));
}

/** One that is in memory. */
function putWhole(places: Places, entry: Entry, index: Index, content: Uint8Array): void {
  try {
    if (!createHash('sha256').update(content).digest().equals(entry.sha256)) throw new Error(NOT_ITS_HASH);
    const staging = places.staging();
    const temporary = temporaryName();
    const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
    const fd = openSync(staging.at(temporary), flags, entry.executable ? 0o755 : 0o644);
    try {
      for (let at = 0; at < content.length;) at += writeSync(fd, content, at);
      name(places, staging, temporary, fd, entry, index);
    } catch (error) {
      unlinked(staging, temporary);
      throw error;
    } finally {
      closeSync(fd);
    }
  } catch (error) {
    throw failed(entry, error);
  }
}

/** One that comes in pieces, from where it was cut. */
async function putLarge(places: Places, { sha256, size, entries }: Missing, index: Index, contents: Contents) {
  const [first, ...copies] = entries;
  if (first === undefined) return;
  try {
    using staged = stage(places.root, sha256, first.executable);
    if (staged.bytes < size) {
      using _ = contents.want([{ sha256, size, from: staged.bytes }]);
      for await (const piece of contents.read(sha256)) staged.write(piece);
    }
    if (!staged.complete(sha256)) throw new Error(NOT_ITS_HASH);
    name(places, staged.folder, staged.name, staged.fd, first, index);
  } catch (error) {
    throw failed(first, error);
  }
  for (const copy of copies) {
    try {
      using staged = stage(places.root, sha256, copy.executable);
      for (const piece of piecesOf(places.root, first.path)) staged.write(piece);
      if (!staged.complete(sha256)) throw new Error(NOT_ITS_HASH);
      name(places, staged.folder, staged.name, staged.fd, copy, index);
    } catch (error) {
      throw failed(copy, error);
    }
  }
}

/** A file that is whole gets its name. It is remembered only if that is what then stands there. */
function name(places: Places, staging: Folder, temporary: string, fd: number, entry: Entry, index: Index): void {
  const segments = segmentsOf(entry.path);
  const last = segments.at(-1) ?? '';
  const parent = places.make(segments);
  replace(places, staging, temporary, parent, last);
  const stats = lstatSync(parent.at(last), { throwIfNoEntry: false });
  // After the rename, which is a change of its own.
  if (stats !== undefined && isSame(stats, fstatSync(fd)))
    index.set(entry.path, regular(stats, Buffer.from(entry.sha256).toString('latin1')));
  else index.delete(entry.path);
}

function isSame(a: Stats, b: Stats): boolean {
  return a.ino === b.ino && a.dev === b.dev && a.mtimeMs === b.mtimeMs;
}

/** By rename, over whatever is there. */
function replace(places: Places, from: Folder, temporary: string, to: Folder, last: string): void {
  try {
    renameSync(from.at(temporary), to.at(last));
  } catch (error) {
    if (codeOf(error) !== 'EISDIR' && codeOf(error) !== 'ENOTEMPTY') throw error;
    removeTree(to, last, places.root);
    renameSync(from.at(temporary), to.at(last));
  }
}

function deleteEntry(places: Places, path: string, index: Index): boolean {
  index.delete(path);
  const { root } = places;
  const segments = segmentsOf(path);
  {
    const parent = places.find(segments);
    if (parent === undefined) return false;
    const last = segments.at(-1) ?? '';
    if (lstatSync(parent.at(last), { throwIfNoEntry: false }) === undefined) return false;
    if (!unlinked(parent, last) && !removeFolder(parent, last)) return false;
  }
  // Folders that only stood for what was in them go with it.
  places.forget();
  for (let depth = segments.length - 1; depth > 0; depth -= 1) {
    using parent = findFolder(root, segments.slice(0, depth - 1));
    if (parent === undefined || !removeFolder(parent, segments[depth - 1] ?? '')) return true;
  }
  return true;
}

/** Of a file that we have just written. */
function* piecesOf(root: Folder, path: string): Iterable<Buffer> {
  const segments = segmentsOf(path);
  using parent = findFolder(root, segments.slice(0, -1));
  if (parent === undefined) return;
  const fd = openFileFd(parent.at(segments.at(-1) ?? ''));
  try {
    for (;;) {
      const piece = Buffer.allocUnsafe(PIECE_BYTES);
      const read = readSync(fd, piece);
      if (read === 0) return;
      yield piece.subarray(0, read);
    }
  } finally {
    closeSync(fd);
  }
}

const NOT_ITS_HASH = 'what arrived does not have the hash that was named';

function failed(entry: Entry, cause: unknown): Error {
  return new Error(`${entry.path} could not be written: ${cause instanceof Error ? cause.message : String(cause)}`, {
    cause,
  });
}

/** What a former guest left there is not in the way. */
const OURS = randomBytes(8).toString('hex');
let written = 0;

function temporaryName(): string {
  written += 1;
  return `${OURS}-${written}`;
}

/** What comes from the owner is checked all the same: a path is never trusted to stay inside. */
function segmentsOf(path: string): readonly string[] {
  const result = canonicalPath(path);
  if ('refused' in result) throw new Error(result.refused);
  return result.path.slice(1).split('/');
}
