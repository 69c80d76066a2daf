/** A zip into a tree, entry by entry, from the file on disk. What its directory says is checked while it is read. */
import { open, type Entry, type ZipFile } from 'yauzl';
import type { Readable } from 'node:stream';
import { escapeName } from '../../../proto/paths.ts';
import { PermanentError, TransientError } from '../../errors.ts';
import { strippedPath } from './tar.ts';
import type { SeedTree } from './tree.ts';

const FORMAT = 0o170000;
const DIRECTORY = 0o040000;
const SYMLINK = 0o120000;
const REGULAR = 0o100000;
const UNIX = 3;
const MAX_TARGET_BYTES = 4_096;

/** @throws PermanentError for whatever is wrong with the archive, TransientError when the store is away */
export async function unzip(path: string, strip: number, tree: SeedTree, signal: AbortSignal): Promise<void> {
  const zip = await opened(path);
  try {
    for (let entry = await next(zip); entry !== undefined; entry = await next(zip)) {
      signal.throwIfAborted();
      await take(zip, entry, strip, tree);
    }
  } catch (error) {
    signal.throwIfAborted();
    throw asPermanent(error);
  } finally {
    zip.close();
  }
}

async function take(zip: ZipFile, entry: Entry, strip: number, tree: SeedTree): Promise<void> {
  const name = entry.fileNameRaw;
  if (entry.isEncrypted()) throw new PermanentError('PathRefused', `${escapeName(name)} is encrypted`);
  const path = strippedPath(name, strip);
  // Only Unix keeps a mode there.
  const mode = entry.versionMadeBy >> 8 === UNIX ? entry.externalFileAttributes >>> 16 : 0;
  const kind = mode & FORMAT;
  if (name.at(-1) === 0x2f || kind === DIRECTORY) {
    if (path !== undefined) tree.directory(path);
    return;
  }
  if (kind !== 0 && kind !== REGULAR && kind !== SYMLINK)
    throw new PermanentError('PathRefused', `${escapeName(name)} is of a kind that is no file, folder or link`);
  if (path === undefined) return;
  if (kind === SYMLINK) {
    if (entry.uncompressedSize > MAX_TARGET_BYTES)
      throw new PermanentError(
        'PathRefused',
        `symbolic link ${escapeName(name)} has a target of ${entry.uncompressedSize} bytes`,
      );
    const pieces: Buffer[] = [];
    for await (const piece of await content(zip, entry)) pieces.push(piece as Buffer);
    tree.symlink(path, Buffer.concat(pieces));
    return;
  }
  await tree.file(path, (mode & 0o111) !== 0, entry.uncompressedSize, lazily(zip, entry));
}

/** Opened only once its announced size was found to be within the limits. */
async function* lazily(zip: ZipFile, entry: Entry): AsyncIterable<Buffer> {
  for await (const piece of await content(zip, entry)) yield piece as Buffer;
}

function content(zip: ZipFile, entry: Entry): Promise<Readable> {
  return new Promise((resolve, reject) =>
    zip.openReadStream(entry, (error, stream) => (error === null ? resolve(stream) : reject(error))),
  );
}

function opened(path: string): Promise<ZipFile> {
  return new Promise((resolve, reject) =>
    open(
      path,
      // Names stay bytes; sizes are held while reading; `next` asks for each entry.
      { lazyEntries: true, autoClose: false, decodeStrings: false, validateEntrySizes: true },
      (error, zip) => (error === null ? resolve(zip) : reject(asPermanent(error))),
    ),
  );
}

function next(zip: ZipFile): Promise<Entry | undefined> {
  return new Promise((resolve, reject) => {
    const done = () => zip.off('entry', got).off('end', ended).off('error', failed);
    const got = (entry: Entry) => {
      done();
      resolve(entry);
    };
    const ended = () => {
      done();
      resolve(undefined);
    };
    const failed = (error: Error) => {
      done();
      reject(error);
    };
    zip.on('entry', got).on('end', ended).on('error', failed);
    zip.readEntry();
  });
}

function asPermanent(error: unknown): unknown {
  if (error instanceof PermanentError || error instanceof TransientError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new PermanentError('SeedFailed', `the archive is no whole zip: ${message}`, { cause: error });
}
