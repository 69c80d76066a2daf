/** A compressed tar into a tree, as a stream: nothing is written to a disk, nothing is held but one header and one batch. */
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { Transform, type Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { constants, createGunzip, createZstdDecompress } from 'node:zlib';
import { extract, type Header } from 'tar-stream';
import { escapeName } from '../../../proto/paths.ts';
import { PermanentError, TransientError } from '../../errors.ts';
import { pathOf, type Limits, type Name, type SeedTree } from './tree.ts';

export type TarFormat = 'tar.gz' | 'tar.zst';

/** Of output to input, once there is more output than FREE_BYTES: no honest archive of files comes near it. */
const MAX_RATIO = 250;
const FREE_BYTES = 64 * 1024 * 1024;
/** Headers, padding and names of an entry. */
const ENTRY_BYTES = 4_096;
/** zstd may ask for a window of 2 GiB; `zstd -19` asks for 8 MiB, `--ultra -20` for 32. */
const WINDOW_LOG = 25;
const SPECIAL: Readonly<Record<string, string>> = {
  'character-device': 'a device',
  'block-device': 'a device',
  fifo: 'a FIFO',
};

/** @throws PermanentError for whatever is wrong with the archive, TransientError when the store is away */
export async function untar(
  path: string,
  format: TarFormat,
  strip: number,
  tree: SeedTree,
  limits: Limits,
  signal: AbortSignal,
): Promise<void> {
  const { size } = await stat(path);
  // Bytes as they are, so that a name which is not UTF-8 is seen to be none.
  const entries = extract({ filenameEncoding: 'latin1', allowUnknownFormat: true } as object);
  let broken: unknown;
  const feeding = pipeline(
    createReadStream(path),
    format === 'tar.gz'
      ? createGunzip()
      : createZstdDecompress({ params: { [constants.ZSTD_d_windowLogMax]: WINDOW_LOG } }),
    bounded(size, limits),
    entries,
    { signal },
  ).catch((error: unknown) => {
    broken ??= error;
    entries.destroy();
  });
  try {
    for await (const entry of entries) {
      await take(entry.header, entry as unknown as Readable, strip, tree);
      entry.resume();
    }
  } catch (error) {
    broken ??= error;
  }
  entries.destroy();
  await feeding;
  signal.throwIfAborted();
  if (broken !== undefined) throw asPermanent(broken, format);
}

async function take(header: Header, content: Readable, strip: number, tree: SeedTree): Promise<void> {
  const { name, linkname } = namesOf(header);
  const path = strippedPath(name, strip);
  const special = SPECIAL[header.type ?? ''];
  if (special !== undefined) throw new PermanentError('PathRefused', `${escapeName(name)} is ${special}`);
  const pax = header.pax ?? {};
  if (Object.keys(pax).some((key) => key.startsWith('GNU.sparse')))
    throw new PermanentError('PathRefused', `${escapeName(name)} is stored as a sparse file; pack without --sparse`);
  switch (header.type) {
    case 'directory':
      if (path !== undefined) tree.directory(path);
      return;
    case 'symlink':
      if (path !== undefined) tree.symlink(path, linkname);
      return;
    case 'link': {
      const to = strippedPath(linkname, strip);
      if (path !== undefined && to === undefined)
        throw new PermanentError(
          'PathRefused',
          `${escapeName(name)} is a hard link to ${escapeName(linkname)}, which archive.stripComponents left out`,
        );
      if (path !== undefined && to !== undefined) await tree.hardLink(path, to);
      return;
    }
    case 'file':
    case 'contiguous-file':
      if (path !== undefined)
        await tree.file(path, ((header.mode ?? 0) & 0o111) !== 0, header.size ?? 0, content as AsyncIterable<Buffer>);
      return;
    default:
      throw new PermanentError('PathRefused', `${escapeName(name)} is of a kind that is no file, folder or link`);
  }
}

/** PAX names are UTF-8 by definition and were decoded; all others are bytes. */
function namesOf({ name, linkname, pax }: Header): { name: Name; linkname: Name } {
  const from = (pax ?? {}) as Readonly<Record<string, string | undefined>>;
  const of = (value: string, fromPax: string | undefined): Name => {
    if (fromPax === undefined || fromPax === '') return Buffer.from(value, 'latin1');
    // The decoder writes U+FFFD for what it could not read.
    return fromPax.includes('\uFFFD') ? Buffer.from([0xff, ...Buffer.from(fromPax)]) : fromPax;
  };
  return { name: of(name, from['path']), linkname: of(linkname ?? '', from['linkpath']) };
}

/** Checked whole before anything is taken off. Undefined: nothing is left, or it is the archive's own root. */
export function strippedPath(name: Name, strip: number): string | undefined {
  if (isRoot(name)) return undefined;
  const rest = pathOf(name)
    .split('/')
    .slice(1 + strip);
  return rest.length === 0 ? undefined : `/${rest.join('/')}`;
}

/** `tar -C folder .` names the folder itself. */
function isRoot(name: Name): boolean {
  const text = typeof name === 'string' ? name : Buffer.from(name).toString('latin1');
  return text !== '' && text.length <= 16 && text.split('/').every((segment) => segment === '' || segment === '.');
}

/** What comes out of the decompressor, against what an archive within the limits can have. */
function bounded(compressed: number, { totalBytes, entries }: Limits): Transform {
  const most = totalBytes + entries * ENTRY_BYTES + FREE_BYTES;
  let bytes = 0;
  return new Transform({
    transform: (chunk: Buffer, _encoding, done) => {
      bytes += chunk.length;
      const isBomb = bytes > FREE_BYTES && bytes > compressed * MAX_RATIO;
      if (isBomb || bytes > most)
        return done(
          new PermanentError(
            'WorkspaceFull',
            isBomb
              ? `the archive's ${compressed} bytes unpack to more than ${MAX_RATIO} times as many; that is refused`
              : `the archive unpacks to more than ${most} bytes`,
          ),
        );
      done(null, chunk);
    },
  });
}

/** What the decompressor and the reader of tar say is about the archive, which will not change. */
function asPermanent(error: unknown, format: string): unknown {
  if (error instanceof PermanentError || error instanceof TransientError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new PermanentError('SeedFailed', `the archive is no whole ${format}: ${message}`, { cause: error });
}
