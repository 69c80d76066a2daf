/** The second half of a full sync: what is on the volume and not in the head goes. */
import { isUtf8 } from 'node:buffer';
import { opendirSync } from 'node:fs';
import { openFolder, openRoot, STAGING, type Folder } from './folders.ts';
import { removeFolder, removeTree, unlinked } from './removal.ts';

/** Deeper than any tree that may be committed. */
const MAX_DEPTH = 512;

/**
 * Removes whatever is neither kept nor ignored, but for where files are written. Nothing of it is
 * remembered, so its size does not matter.
 * @param kept paths of entries. Their parents stay; what is below them goes.
 * @returns how many files, links and folders were removed, each tree counted as one
 */
export function removeOthers(
  rootPath: string,
  kept: { has(path: string): boolean },
  ignored: (path: string) => boolean,
): number {
  let removed = 0;
  using root = openRoot(rootPath);
  clean(root, '', 0);
  return removed;

  /** @returns whether something stays */
  function clean(at: Folder, prefix: string, depth: number): boolean {
    let stays = false;
    const listing = opendirSync(`/proc/self/fd/${at.fd}`, { encoding: 'buffer' as BufferEncoding, bufferSize: 256 });
    try {
      for (let entry = listing.readSync(); entry !== null; entry = listing.readSync()) {
        // The types know of strings only.
        if (one(at, entry.name as unknown as Buffer, prefix, entry.isDirectory(), depth)) stays = true;
      }
    } finally {
      listing.closeSync();
    }
    return stays;
  }

  function one(at: Folder, name: Buffer, prefix: string, isFolder: boolean, depth: number): boolean {
    const path = isUtf8(name) ? `${prefix}/${name.toString('utf8')}` : undefined;
    if (path !== undefined && (ignored(path) || path === `/${STAGING}`)) return true;
    const wanted = path !== undefined && kept.has(path);
    if (!isFolder) {
      if (wanted) return true;
      unlinked(at, name);
    } else if (path === undefined || depth >= MAX_DEPTH) removeTree(at, name, root);
    else {
      let stays: boolean;
      {
        using inner = openFolder(at, name);
        stays = clean(inner, path, depth + 1);
      }
      if (stays || wanted) return true;
      if (!removeFolder(at, name)) removeTree(at, name, root);
    }
    removed += 1;
    return false;
  }
}
