/**
 * Walking and writing a tree that somebody hostile may have filled. Node has no openat; a folder that was opened with
 * O_NOFOLLOW is reached again through /proc/self/fd, so no path is ever resolved through a link of the sandbox's.
 */
import { isUtf8 } from 'node:buffer';
import { closeSync, constants, mkdirSync, openSync, readdirSync, rmdirSync, unlinkSync, type Dirent } from 'node:fs';

const FOLDER = constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW;
/** Names of files that are being written; renamed when whole. Never listed. */
export const TEMPORARY = '.lathe-tmp-';

export type Folder = Disposable & Readonly<{ fd: number; at(name: string | Buffer): string | Buffer }>;

export function openRoot(path: string): Folder {
  return folder(openSync(path, constants.O_RDONLY | constants.O_DIRECTORY));
}

/** @throws ENOTDIR, ELOOP when it is something else, a link to a folder included */
export function openFolder(parent: Folder, name: string | Buffer): Folder {
  return folder(openSync(parent.at(name), FOLDER));
}

/** Opens the folder at these segments below `parent`; undefined when it is not there or something else. */
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

/** Names that are UTF-8 as text, the others as bytes. */
export function entries(of: Folder): readonly Dirent<string | Buffer>[] {
  const path = `/proc/self/fd/${of.fd}`;
  const quick = readdirSync(path, { withFileTypes: true });
  // U+FFFD stands for what could not be read as text; or somebody named a file so.
  if (!quick.some((entry) => entry.name.includes('\uFFFD'))) return quick as Dirent<string | Buffer>[];
  const exact = readdirSync(path, { withFileTypes: true, encoding: 'buffer' });
  return exact.map(
    (entry) =>
      (isUtf8(entry.name) ? Object.assign(entry, { name: entry.name.toString('utf8') }) : entry) as Dirent<
        string | Buffer
      >,
  );
}

/** A file, a link, or a folder with all that is in it. Nothing is followed. */
export function removeTree(parent: Folder, name: string | Buffer): void {
  try {
    unlinkSync(parent.at(name));
    return;
  } catch (error) {
    const code = codeOf(error);
    if (code === 'ENOENT') return;
    if (code !== 'EISDIR' && code !== 'EPERM') throw error;
  }
  {
    using inner = openFolder(parent, name);
    for (const entry of entries(inner)) removeTree(inner, entry.name);
  }
  rmdirSync(parent.at(name));
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
    const parent = at;
    try {
      at = openFolder(parent, name);
    } catch (error) {
      const code = codeOf(error);
      const known = code === 'ENOENT' || code === 'ENOTDIR' || code === 'ELOOP';
      if (!known || missing(parent, name, code) === 'stop') {
        parent[Symbol.dispose]();
        if (known) return undefined;
        throw error;
      }
      at = openFolder(parent, name);
    }
    parent[Symbol.dispose]();
  }
  return at;
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
