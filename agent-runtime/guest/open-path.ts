import { closeSync, fstatSync } from 'node:fs';
import { findFolder, openFileFd, openRoot } from './folders.ts';

/** A regular file of the tree to read; undefined when there is none at this path by now. No link is followed. */
export function openPath(rootPath: string, path: string): number | undefined {
  const segments = path.slice(1).split('/');
  using root = openRoot(rootPath);
  try {
    using parent = findFolder(root, segments.slice(0, -1));
    if (parent === undefined) return undefined;
    const fd = openFileFd(parent.at(segments.at(-1) ?? ''));
    if (fstatSync(fd).isFile()) return fd;
    closeSync(fd);
  } catch {
    // Something else by now, or not to be had: the same to whoever asks.
  }
  return undefined;
}
