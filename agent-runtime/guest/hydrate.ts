/** Makes the tree equal what the store says. A file appears whole, by rename; the head wins over what is in the way. */
import {
  chmodSync,
  closeSync,
  constants,
  lstatSync,
  openSync,
  renameSync,
  rmdirSync,
  symlinkSync,
  writeSync,
} from 'node:fs';
import { createHash, randomBytes } from 'node:crypto';
import { EntryKind, type Entry } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { canonicalPath } from '../../proto/paths.ts';
import { codeOf, findFolder, makeFolder, openRoot, removeTree, TEMPORARY, type Folder } from './folders.ts';
import { hashFile, indexed, type Index } from './scan.ts';

/** Content by hash; resolves piece by piece, in order. */
export type Contents = (sha256: Buffer) => AsyncIterable<Buffer>;
export type Applied = { written: number; deleted: number };

/** Applies entries in order and keeps `index` true to what is on disk. @throws Error naming the path that could not be written */
export async function applyEntries(
  root: string,
  entries: readonly Entry[],
  index: Index,
  contents: Contents,
): Promise<Applied> {
  const done: Applied = { written: 0, deleted: 0 };
  using top = openRoot(root);
  // Deletions first: what stands where a folder is needed is then gone.
  for (const entry of entries) {
    if (entry.kind === EntryKind.ENTRY_KIND_DELETED)
      done.deleted += deleteEntry(top, segmentsOf(entry.path), index, entry.path);
  }
  for (const entry of entries) {
    if (entry.kind !== EntryKind.ENTRY_KIND_DELETED && (await putEntry(top, entry, index, contents))) done.written += 1;
  }
  return done;
}

async function putEntry(top: Folder, entry: Entry, index: Index, contents: Contents): Promise<boolean> {
  const segments = segmentsOf(entry.path);
  const name = segments.at(-1) ?? '';
  if (entry.kind === EntryKind.ENTRY_KIND_DIRECTORY) {
    using made = makeFolder(top, segments);
    index.set(entry.path, indexed(lstatSync(`/proc/self/fd/${made.fd}/.`, { bigint: true }), Buffer.alloc(32)));
    return true;
  }
  using parent = makeFolder(top, segments.slice(0, -1));
  // A folder that is not empty any more is no entry of its own.
  for (let i = 1; i < segments.length; i += 1) index.delete(`/${segments.slice(0, i).join('/')}`);
  if (isCurrent(parent, name, entry, index)) return false;
  const temporary = `${TEMPORARY}${randomBytes(8).toString('hex')}`;
  if (entry.kind === EntryKind.ENTRY_KIND_SYMLINK) symlinkSync(entry.target, parent.at(temporary));
  else await writeWhole(parent, temporary, entry, contents);
  try {
    renameSync(parent.at(temporary), parent.at(name));
  } catch (error) {
    if (codeOf(error) !== 'EISDIR' && codeOf(error) !== 'ENOTEMPTY') throw error;
    removeTree(parent, name);
    renameSync(parent.at(temporary), parent.at(name));
  }
  const target = entry.kind === EntryKind.ENTRY_KIND_SYMLINK ? entry.target : undefined;
  index.set(entry.path, indexed(lstatSync(parent.at(name), { bigint: true }), Buffer.from(entry.sha256), target));
  return true;
}

/** What is on disk is what is wanted, by hash; only the executable bit may have to follow. */
function isCurrent(parent: Folder, name: string, entry: Entry, index: Index): boolean {
  if (entry.kind !== EntryKind.ENTRY_KIND_REGULAR) return false;
  const stats = lstatSync(parent.at(name), { bigint: true, throwIfNoEntry: false });
  if (stats === undefined || !stats.isFile() || stats.size !== entry.size) return false;
  const found = hashFile(parent, name, 0n);
  if (found === undefined || !found.sha256.equals(entry.sha256)) return false;
  if (found.executable !== entry.executable) chmodSync(parent.at(name), entry.executable ? 0o755 : 0o644);
  index.set(entry.path, indexed(lstatSync(parent.at(name), { bigint: true }), found.sha256));
  return true;
}

async function writeWhole(parent: Folder, name: string, entry: Entry, contents: Contents): Promise<void> {
  const fd = openSync(
    parent.at(name),
    constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW,
    entry.executable ? 0o755 : 0o644,
  );
  const hash = createHash('sha256');
  try {
    for await (const piece of entry.inline === undefined ? contents(Buffer.from(entry.sha256)) : [entry.inline]) {
      hash.update(piece);
      for (let at = 0; at < piece.length;) at += writeSync(fd, piece, at);
    }
  } finally {
    closeSync(fd);
  }
  if (!hash.digest().equals(entry.sha256))
    throw new Error(`what arrived for ${entry.path} does not have the hash that was named`);
}

function deleteEntry(top: Folder, segments: readonly string[], index: Index, path: string): number {
  index.delete(path);
  using parent = findFolder(top, segments.slice(0, -1)) ?? {
    fd: -1,
    at: (name: string | Buffer) => name,
    [Symbol.dispose]: () => undefined,
  };
  if (parent.fd === -1) return 0;
  const name = segments.at(-1) ?? '';
  const stats = lstatSync(parent.at(name), { throwIfNoEntry: false });
  if (stats === undefined) return 0;
  if (!stats.isDirectory()) removeTree(parent, name);
  else if (!removeIfEmpty(parent, name)) return 0;
  pruneEmpty(top, segments.slice(0, -1));
  return 1;
}

/** Folders that only stood for what was in them go with it. */
function pruneEmpty(top: Folder, segments: readonly string[]): void {
  for (let depth = segments.length; depth > 0; depth -= 1) {
    using parent = findFolder(top, segments.slice(0, depth - 1));
    if (parent === undefined || !removeIfEmpty(parent, segments[depth - 1] ?? '')) return;
  }
}

function removeIfEmpty(parent: Folder, name: string): boolean {
  try {
    rmdirSync(parent.at(name));
    return true;
  } catch {
    return false;
  }
}

/** What comes from the owner is checked all the same: a path is never trusted to stay inside. */
function segmentsOf(path: string): readonly string[] {
  const result = canonicalPath(path);
  if ('refused' in result) throw new Error(result.refused);
  return result.path.slice(1).split('/');
}
