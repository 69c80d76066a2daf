/** Removing what a command may have made as hard to remove as it could: very deep, very wide, without rights. */
import { randomBytes } from 'node:crypto';
import { opendirSync, renameSync, rmdirSync, unlinkSync } from 'node:fs';
import { codeOf, openFolder, TEMPORARY, type Folder } from './folders.ts';

/** Folders below this many are moved to the root before they go: each on the way there holds a descriptor. */
const MAX_DEPTH = 200;

/** A file, a link, or a folder with all that is in it, however deep. Nothing is followed. */
export function removeTree(parent: Folder, name: string | Buffer, root: Folder): void {
  const aside: string[] = [];
  remove(parent, name, 0);
  for (let next = aside.pop(); next !== undefined; next = aside.pop()) remove(root, next, 0);

  function remove(at: Folder, child: string | Buffer, depth: number): void {
    if (unlinked(at, child)) return;
    if (depth >= MAX_DEPTH) {
      const moved = `${TEMPORARY}-${randomBytes(8).toString('hex')}`;
      renameSync(at.at(child), root.at(moved));
      aside.push(moved);
      return;
    }
    using inner = openFolder(at, child);
    // A listing may miss what moves while it is read.
    for (let empty = false; !empty; empty = removeFolder(at, child)) {
      for (const entry of namesIn(inner)) remove(inner, entry, depth + 1);
    }
  }
}

/** False when it is a folder. */
export function unlinked(parent: Folder, name: string | Buffer): boolean {
  try {
    unlinkSync(parent.at(name));
  } catch (error) {
    const code = codeOf(error);
    if (code === 'EISDIR') return false;
    if (code !== 'ENOENT') throw error;
  }
  return true;
}

/** False when there is something in it. */
export function removeFolder(parent: Folder, name: string | Buffer): boolean {
  try {
    rmdirSync(parent.at(name));
  } catch (error) {
    const code = codeOf(error);
    if (code === 'ENOTEMPTY' || code === 'EEXIST') return false;
    if (code !== 'ENOENT') throw error;
  }
  return true;
}

/** One by one: a folder may hold more names than we have memory. */
function* namesIn(folder: Folder): Iterable<Buffer> {
  const listing = opendirSync(`/proc/self/fd/${folder.fd}`, { encoding: 'buffer' as BufferEncoding, bufferSize: 256 });
  try {
    for (let entry = listing.readSync(); entry !== null; entry = listing.readSync()) {
      // The types know of strings only.
      yield entry.name as unknown as Buffer;
    }
  } finally {
    listing.closeSync();
  }
}
