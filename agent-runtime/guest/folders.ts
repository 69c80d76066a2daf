/**
 * Walking and writing a tree that somebody hostile may have filled. Node has no openat; a folder that was opened with
 * O_NOFOLLOW is reached again through /proc/self/fd, so no path is ever resolved through a link of the sandbox's.
 */
import {
  chmodSync,
  closeSync,
  constants,
  fchmodSync,
  fstatSync,
  mkdirSync,
  opendirSync,
  openSync,
  readdirSync,
  unlinkSync,
  type Dirent,
} from 'node:fs';
import { isUtf8 } from 'node:buffer';

const FOLDER = constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW;
const FILE = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
/** open(2): names a file without any right to it. Node does not export it; the same on all that we run on. */
const O_PATH = 0o10000000;
/** Names of ours in the tree; never listed. */
export const TEMPORARY = '.lathe-tmp';
/** In the root: files that are being written, renamed when whole. On the tree's own volume, or they could not be. */
export const STAGING = TEMPORARY;
/** A folder of at most so many names has less; from there on they are counted before they are listed. */
const FEW_NAMES_BYTES = 256 * 1024;

export type Folder = Disposable & Readonly<{ fd: number; at(name: string | Buffer): string | Buffer }>;

export function openRoot(path: string): Folder {
  return folder(openSync(path, constants.O_RDONLY | constants.O_DIRECTORY));
}

/**
 * For writing: what a command took from the folder's mode (`chmod -R a-w`, a module cache) is given back to us.
 * @throws ENOTDIR, ELOOP when it is something else, a link to a folder included
 */
export function openFolder(parent: Folder, name: string | Buffer): Folder {
  const fd = openFolderFd(parent.at(name));
  const { mode } = fstatSync(fd);
  if ((mode & 0o700) !== 0o700) allow(() => fchmodSync(fd, (mode & 0o777) | 0o700));
  return folder(fd);
}

/** For reading, at any path that leads through no link. One that its owner may not list is made listable. */
export function openFolderFd(path: string | Buffer): number {
  return openOr(path, FOLDER, (mode, allowed) => allowed(mode | 0o700));
}

/** A file to read, whatever it is by now: look with fstat. One that its owner may not read keeps its mode. */
export function openFileFd(path: string | Buffer): number {
  return openOr(path, FILE, (mode, allowed, again) => {
    allowed(mode | 0o400);
    again();
    allowed(mode);
  });
}

/** Opens the folder at these segments below `root`; undefined when it is not there or something else. */
export function findFolder(root: Folder, segments: readonly string[]): Folder | undefined {
  return descend(root, segments, () => 'stop');
}

/** The same, made on the way; what is in the way and no folder is removed (the head wins). */
export function makeFolder(root: Folder, segments: readonly string[]): Folder {
  const made = descend(root, segments, (parent, name, code) => {
    if (code !== 'ENOENT') unlinkSync(parent.at(name));
    mkdirSync(parent.at(name));
    return 'again';
  });
  if (made === undefined) throw new Error(`the folder ${segments.join('/')} could not be made`);
  return made;
}

export type Listing = Readonly<{
  entries: readonly Dirent[];
  /** Names that are not UTF-8. */ broken: readonly Buffer[];
}>;

/** What is in a folder. `.` is the working directory, which the scan makes the folder that it looks at. */
export function listFolder(path: string): Listing {
  const entries = readdirSync(path, { withFileTypes: true });
  // Node puts this character for what it can't decode; it may also stand in a name, rightly.
  if (!entries.some((entry) => entry.name.includes('\uFFFD'))) return { entries, broken: [] };
  const names = readdirSync(path, { encoding: 'buffer' });
  const whole = new Set(names.filter((name) => isUtf8(name)).map((name) => name.toString('utf8')));
  return {
    entries: entries.filter((entry) => whole.delete(entry.name)),
    broken: names.filter((name) => !isUtf8(name)),
  };
}

export function isEmptyFolder(path: string): boolean {
  const listing = opendirSync(path, { bufferSize: 4 });
  try {
    return listing.readSync() === null;
  } finally {
    listing.closeSync();
  }
}

/** Whether a folder has more entries than that, found out without holding them. One that is small is not looked at. */
export function countBeyond(fd: number, most: number): boolean {
  if (fstatSync(fd).size < FEW_NAMES_BYTES) return false;
  let count = 0;
  const listing = opendirSync(`/proc/self/fd/${fd}`, { encoding: 'buffer' as BufferEncoding, bufferSize: 1_024 });
  try {
    while (count <= most && listing.readSync() !== null) count += 1;
  } finally {
    listing.closeSync();
  }
  return count > most;
}

export function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : '';
}

function descend(
  root: Folder,
  segments: readonly string[],
  missing: (parent: Folder, name: string, code: string) => 'stop' | 'again',
): Folder | undefined {
  let at = folder(openSync(`/proc/self/fd/${root.fd}`, constants.O_RDONLY | constants.O_DIRECTORY));
  for (const name of segments) {
    using parent = at;
    try {
      at = openFolder(parent, name);
    } catch (error) {
      const code = codeOf(error);
      if (code !== 'ENOENT' && code !== 'ENOTDIR' && code !== 'ELOOP') throw error;
      if (missing(parent, name, code) === 'stop') return undefined;
      at = openFolder(parent, name);
    }
  }
  return at;
}

/** Opens; where our own user took the right to from itself, `regain` gives it back to that very file and opens again. */
function openOr(
  path: string | Buffer,
  flags: number,
  regain: (mode: number, allowed: (mode: number) => void, again: () => void) => void,
): number {
  try {
    return openSync(path, flags);
  } catch (error) {
    if (codeOf(error) !== 'EACCES') throw error;
    const named = openSync(path, O_PATH | constants.O_NOFOLLOW);
    try {
      const same = `/proc/self/fd/${named}`;
      let fd: number | undefined;
      const again = () => (fd ??= openSync(same, flags & ~constants.O_NOFOLLOW));
      regain(fstatSync(named).mode & 0o777, (mode) => allow(() => chmodSync(same, mode)), again);
      return again();
    } finally {
      closeSync(named);
    }
  }
}

/** Not ours to change: then what follows fails with a reason of its own. */
function allow(change: () => void): void {
  try {
    change();
  } catch (error) {
    if (codeOf(error) !== 'EPERM') throw error;
  }
}

function folder(fd: number): Folder {
  const prefix = `/proc/self/fd/${fd}/`;
  let open = true;
  return {
    fd,
    at: (name) => (typeof name === 'string' ? prefix + name : Buffer.concat([Buffer.from(prefix), name])),
    [Symbol.dispose]: () => {
      if (open) closeSync(fd);
      open = false;
    },
  };
}
