/** Makes the tree equal what the store says. A file appears whole, by rename; the head wins over what is in the way. */
import { createHash, randomBytes } from 'node:crypto';
import {
  chmodSync,
  closeSync,
  constants,
  lstatSync,
  openSync,
  readlinkSync,
  readSync,
  renameSync,
  symlinkSync,
  writeSync,
} from 'node:fs';
import { EntryKind, type Entry } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { canonicalPath } from '../../proto/paths.ts';
import { batches, type Contents, type Wanted } from './contents.ts';
import { codeOf, findFolder, makeFolder, openFileFd, openRoot, TEMPORARY, type Folder } from './folders.ts';
import { removeFolder, removeTree, unlinked } from './removal.ts';
import { directory, hashFile, indexed, type Index } from './scan.ts';

export type Applied = { written: number; deleted: number };

/** Applies entries and keeps `index` true to what is on disk. @throws Error naming the path that could not be written */
export async function applyEntries(
  rootPath: string,
  entries: readonly Entry[],
  index: Index,
  contents: Contents,
): Promise<Applied> {
  const done: Applied = { written: 0, deleted: 0 };
  using root = openRoot(rootPath);
  // Deletions first: what stands where a folder is needed is then gone.
  for (const entry of entries) {
    if (entry.kind === EntryKind.ENTRY_KIND_DELETED && deleteEntry(root, entry.path, index)) done.deleted += 1;
  }
  /** By hash: one content may stand at several paths. */
  const missing = new Map<string, { wanted: Wanted; entries: Entry[] }>();
  for (const entry of entries) {
    if (entry.kind === EntryKind.ENTRY_KIND_DELETED || isCurrent(root, entry, index)) continue;
    done.written += 1;
    if (entry.kind !== EntryKind.ENTRY_KIND_REGULAR) put(root, entry, index);
    else if (entry.inline !== undefined) await putFile(root, entry, index, [entry.inline]);
    else {
      const sha256 = Buffer.from(entry.sha256);
      const found = missing.get(sha256.toString('hex')) ?? {
        wanted: { sha256, size: Number(entry.size) },
        entries: [],
      };
      found.entries.push(entry);
      missing.set(sha256.toString('hex'), found);
    }
  }
  for (const batch of batches([...missing.values()], ({ wanted }) => wanted.size)) {
    using _ = contents.want(batch.map(({ wanted }) => wanted));
    for (const { wanted, entries: of } of batch) {
      const [first, ...copies] = of;
      if (first === undefined) continue;
      await putFile(root, first, index, contents.read(wanted.sha256));
      for (const copy of copies) await putFile(root, copy, index, piecesOf(root, first.path));
    }
  }
  return done;
}

/** What is on disk is what is wanted, by content; only the executable bit may have to follow. */
function isCurrent(root: Folder, entry: Entry, index: Index): boolean {
  const segments = segmentsOf(entry.path);
  using parent = findFolder(root, segments.slice(0, -1));
  if (parent === undefined) return false;
  const path = parent.at(segments.at(-1) ?? '');
  const stats = lstatSync(path, { throwIfNoEntry: false });
  if (stats === undefined) return false;
  switch (entry.kind) {
    case EntryKind.ENTRY_KIND_SYMLINK:
      if (!stats.isSymbolicLink() || !readlinkSync(path, { encoding: 'buffer' }).equals(Buffer.from(entry.target)))
        return false;
      break;
    case EntryKind.ENTRY_KIND_REGULAR: {
      if (!stats.isFile() || BigInt(stats.size) !== entry.size) return false;
      const found = hashFile(path);
      if (found === undefined || !found.sha256.equals(entry.sha256)) return false;
      if (found.executable !== entry.executable) chmodSync(path, entry.executable ? 0o755 : 0o644);
      break;
    }
    default:
      return false;
  }
  parentsAreNoEntries(segments, index);
  index.set(entry.path, indexed(path, Buffer.from(entry.sha256)));
  return true;
}

/** A folder or a link. */
function put(root: Folder, entry: Entry, index: Index): void {
  const segments = segmentsOf(entry.path);
  parentsAreNoEntries(segments, index);
  if (entry.kind === EntryKind.ENTRY_KIND_DIRECTORY) {
    makeFolder(root, segments)[Symbol.dispose]();
    index.set(entry.path, directory());
    return;
  }
  if (entry.kind !== EntryKind.ENTRY_KIND_SYMLINK) throw new Error(`${entry.path} is of kind ${entry.kind}`);
  using parent = makeFolder(root, segments.slice(0, -1));
  const name = segments.at(-1) ?? '';
  const temporary = temporaryName();
  symlinkSync(entry.target, parent.at(temporary));
  replace(root, parent, temporary, name);
  index.set(entry.path, indexed(parent.at(name), Buffer.from(entry.sha256)));
}

async function putFile(
  root: Folder,
  entry: Entry,
  index: Index,
  pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
): Promise<void> {
  const segments = segmentsOf(entry.path);
  const name = segments.at(-1) ?? '';
  parentsAreNoEntries(segments, index);
  using parent = makeFolder(root, segments.slice(0, -1));
  const temporary = temporaryName();
  try {
    const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
    const fd = openSync(parent.at(temporary), flags, entry.executable ? 0o755 : 0o644);
    const hash = createHash('sha256');
    try {
      for await (const piece of pieces) {
        hash.update(piece);
        for (let at = 0; at < piece.length;) at += writeSync(fd, piece, at);
      }
    } finally {
      closeSync(fd);
    }
    if (!hash.digest().equals(entry.sha256)) throw new Error('what arrived does not have the hash that was named');
    replace(root, parent, temporary, name);
  } catch (error) {
    unlinked(parent, temporary);
    const why = error instanceof Error ? error.message : String(error);
    throw new Error(`${entry.path} could not be written: ${why}`, { cause: error });
  }
  index.set(entry.path, indexed(parent.at(name), Buffer.from(entry.sha256)));
}

/** By rename, over whatever is there. */
function replace(root: Folder, parent: Folder, temporary: string, name: string): void {
  try {
    renameSync(parent.at(temporary), parent.at(name));
  } catch (error) {
    if (codeOf(error) !== 'EISDIR' && codeOf(error) !== 'ENOTEMPTY') throw error;
    removeTree(parent, name, root);
    renameSync(parent.at(temporary), parent.at(name));
  }
}

function deleteEntry(root: Folder, path: string, index: Index): boolean {
  index.delete(path);
  const segments = segmentsOf(path);
  {
    using parent = findFolder(root, segments.slice(0, -1));
    if (parent === undefined) return false;
    const name = segments.at(-1) ?? '';
    if (lstatSync(parent.at(name), { throwIfNoEntry: false }) === undefined) return false;
    if (!unlinked(parent, name) && !removeFolder(parent, name)) return false;
  }
  // Folders that only stood for what was in them go with it.
  for (let depth = segments.length - 1; depth > 0; depth -= 1) {
    using parent = findFolder(root, segments.slice(0, depth - 1));
    if (parent === undefined || !removeFolder(parent, segments[depth - 1] ?? '')) return true;
  }
  return true;
}

/** A folder that is not empty any more is no entry of its own. */
function parentsAreNoEntries(segments: readonly string[], index: Index): void {
  for (let i = 1; i < segments.length; i += 1) index.delete(`/${segments.slice(0, i).join('/')}`);
}

/** Of a file that we have just written. */
function* piecesOf(root: Folder, path: string): Iterable<Buffer> {
  const segments = segmentsOf(path);
  using parent = findFolder(root, segments.slice(0, -1));
  if (parent === undefined) return;
  const fd = openFileFd(parent.at(segments.at(-1) ?? ''));
  try {
    for (;;) {
      const piece = Buffer.allocUnsafe(256 * 1024);
      const read = readSync(fd, piece);
      if (read === 0) return;
      yield piece.subarray(0, read);
    }
  } finally {
    closeSync(fd);
  }
}

function temporaryName(): string {
  return `${TEMPORARY}${randomBytes(8).toString('hex')}`;
}

/** What comes from the owner is checked all the same: a path is never trusted to stay inside. */
function segmentsOf(path: string): readonly string[] {
  const result = canonicalPath(path);
  if ('refused' in result) throw new Error(result.refused);
  return result.path.slice(1).split('/');
}
