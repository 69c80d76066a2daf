/**
 * Where files are written before they have their names: a folder in the tree's root that is never listed. What a
 * transfer that was cut left there goes on with the next one.
 */
import { createHash, type Hash } from 'node:crypto';
import { closeSync, constants, fchmodSync, fstatSync, ftruncateSync, openSync, readSync, writeSync } from 'node:fs';
import { makeFolder, openRoot, STAGING, type Folder } from './folders.ts';
import { removeTree, unlinked } from './removal.ts';

/** What is less is sent again. */
const WORTH_KEEPING_BYTES = 1024 * 1024;
const FLAGS = constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW | constants.O_NONBLOCK;

export type Staged = Disposable &
  Readonly<{
    folder: Folder;
    name: string;
    fd: number;
    /** What is there of it. */
    bytes: number;
    write(piece: Uint8Array): void;
    /** Everything that was written has this hash; else it is worth nothing. */
    complete(sha256: Buffer): boolean;
  }>;

/** A file for one content. Disposed of without having been renamed: kept where that is worth it. */
export function stage(root: Folder, sha256: Buffer, executable: boolean): Staged {
  const folder = stagingFolder(root);
  const name = sha256.toString('hex');
  let fd = openSync(folder.at(name), FLAGS, 0o600);
  const stats = fstatSync(fd);
  if (!stats.isFile() || stats.nlink !== 1) {
    // Something that a command put there.
    closeSync(fd);
    removeTree(folder, name, root);
    fd = openSync(folder.at(name), FLAGS | constants.O_EXCL, 0o600);
  }
  fchmodSync(fd, executable ? 0o755 : 0o644);
  const hash = createHash('sha256');
  let bytes = hashTo(fd, hash);
  let done = false;
  const here = bytes;
  return {
    folder,
    name,
    fd,
    bytes: here,
    write: (piece) => {
      hash.update(piece);
      for (let at = 0; at < piece.length;) at += writeSync(fd, piece, at, piece.length - at, bytes + at);
      bytes += piece.length;
    },
    complete: (wanted) => {
      done = true;
      if (hash.digest().equals(wanted)) return true;
      unlinked(folder, name);
      return false;
    },
    [Symbol.dispose]: () => {
      try {
        if (!done && bytes < WORTH_KEEPING_BYTES) unlinked(folder, name);
      } finally {
        closeSync(fd);
        folder[Symbol.dispose]();
      }
    },
  };
}

/** Made where it is missing; what else has its name goes. */
export function stagingFolder(root: Folder): Folder {
  return makeFolder(root, [STAGING]);
}

/** Nothing is being written any more. */
export function clearStaging(rootPath: string): void {
  using root = openRoot(rootPath);
  removeTree(root, STAGING, root);
}

function hashTo(fd: number, hash: Hash): number {
  const { size } = fstatSync(fd);
  if (size === 0) return 0;
  if (size < WORTH_KEEPING_BYTES) {
    ftruncateSync(fd, 0);
    return 0;
  }
  const buffer = Buffer.allocUnsafe(256 * 1024);
  let bytes = 0;
  for (let read = readSync(fd, buffer, 0, buffer.length, 0); read > 0;) {
    hash.update(buffer.subarray(0, read));
    bytes += read;
    read = readSync(fd, buffer, 0, buffer.length, bytes);
  }
  return bytes;
}
