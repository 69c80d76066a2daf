/** `archive`: many files in one request, as a tar. */
import { isUtf8 } from 'node:buffer';
import { createHash } from 'node:crypto';
import { extract, pack, type Header, type Pack } from 'tar-stream';
import type { WriteChange } from '../../proto/gen/lathe/turns/v1/turns.ts';
import { ARCHIVE_BYTES, HEADERS } from '../../proto/live/types.ts';
import { canonicalPath, escapeName, WORKSPACE_DIR } from '../../proto/paths.ts';
import { PermanentError } from '../errors.ts';
import type { FileEntry } from '../store/rows.ts';
import { answerStream, checkedPath, cursorText, flagOf, idempotencyOf, streamOf, type Call } from './call.ts';
import { entriesOf } from './files.ts';
import { answerWritten, change, write } from './writes.ts';

/** Contents that are held until they are stored together. */
const BATCH_BYTES = 2 * 1024 * 1024;
const MAX_ENTRIES = 100_000;
/** A content of more is streamed by itself. */
const LARGE_BYTES = 1024 * 1024;

/** The library's types know no option. */
const BYTES = { filenameEncoding: 'latin1' } as object;

type EntryHeader = Partial<Header> & Readonly<{ name: string }>;

/** At most 64 MiB; `Lathe-Continue` says where to go on. */
export async function getArchive(call: Call): Promise<void> {
  const entries: FileEntry[] = [];
  let bytes = 0;
  let next: object | undefined;
  let last: object | undefined;
  let version: number | undefined;
  for await (const { entry, cursor, matches } of entriesOf(call)) {
    version ??= cursor.version;
    const size = Number(entry.size) + 1_536;
    if (entries.length === MAX_ENTRIES || (bytes + size > ARCHIVE_BYTES && entries.length > 0)) {
      next = last;
      break;
    }
    last = cursor;
    if (!matches) continue;
    entries.push(entry);
    bytes += size;
  }
  call.response.writeHead(200, {
    'content-type': 'application/x-tar',
    [HEADERS.version]: String(version ?? call.workspace.head),
    ...(next === undefined ? {} : { [HEADERS.continue]: cursorText(next) }),
  });
  const tar = pack();
  // Its failure is what breaks off the answer: half a tar must not look like a whole one.
  void fill(call, tar, entries).then(
    () => tar.finalize(),
    (error: unknown) => tar.destroy(error instanceof Error ? error : new Error(String(error))),
  );
  await answerStream(call, tar as AsyncIterable<Buffer>);
}

async function fill(call: Call, tar: Pack, entries: readonly FileEntry[]): Promise<void> {
  const { store, workspace, signal } = call;
  for (const batch of batchesOf(entries)) {
    const hashes = batch.flatMap((e) => (e.sha256 === null || e.size > LARGE_BYTES ? [] : [e.sha256]));
    const contents =
      hashes.length === 0 ? new Map<string, Buffer>() : await store.readSmallBlobs(workspace.tenant, hashes, signal);
    for (const entry of batch) {
      signal.throwIfAborted();
      const header = headerOf(entry);
      if (entry.sha256 === null) {
        await added(tar, header);
        continue;
      }
      const small = contents.get(entry.sha256.toString('hex'));
      if (small !== undefined) {
        await added(tar, header, small);
        continue;
      }
      await addedFrom(tar, header, store.readBlob(workspace.tenant, entry.sha256, signal));
    }
  }
}

function added(tar: Pack, header: EntryHeader, content?: Buffer): Promise<void> {
  return new Promise((resolve, reject) => {
    tar.entry(header, content ?? '', (error) => (error == null ? resolve() : reject(error)));
  });
}

async function addedFrom(tar: Pack, header: EntryHeader, pieces: AsyncIterable<Buffer>): Promise<void> {
  const ended = Promise.withResolvers<void>();
  // Nobody may be left who hears of it.
  ended.promise.catch(() => undefined);
  const sink = tar.entry(header, (error) => (error == null ? ended.resolve() : ended.reject(error)));
  sink.on('error', ended.reject).on('close', ended.resolve);
  for await (const piece of pieces) if (!sink.write(piece)) await drained(sink);
  sink.end(undefined);
  await ended.promise;
}

function drained(stream: NodeJS.EventEmitter): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      stream.off('drain', done).off('close', done);
      resolve();
    };
    stream.once('drain', done).once('close', done);
  });
}

function headerOf({ path, kind, executable, size, target }: FileEntry): EntryHeader {
  const base = { name: path.slice(1), mtime: new Date(0), uid: 0, gid: 0 };
  switch (kind) {
    case 'symlink':
      return { ...base, type: 'symlink', linkname: target ?? '', mode: 0o777, size: 0 };
    case 'directory':
      return { ...base, name: `${base.name}/`, type: 'directory', mode: 0o755, size: 0 };
    case 'regular':
      return { ...base, type: 'file', mode: executable ? 0o755 : 0o644, size: Number(size) };
  }
}

function* batchesOf(entries: readonly FileEntry[]): Iterable<readonly FileEntry[]> {
  let batch: FileEntry[] = [];
  let bytes = 0;
  for (const entry of entries) {
    const size = entry.size > LARGE_BYTES ? 0 : Number(entry.size);
    if (batch.length > 0 && (bytes + size > BATCH_BYTES || batch.length === 2_000)) {
      yield batch;
      batch = [];
      bytes = 0;
    }
    batch.push(entry);
    bytes += size;
  }
  if (batch.length > 0) yield batch;
}

/** One version; what a guard refuses is left out and told, unless `allOrNothing`. */
export async function putArchive(call: Call): Promise<void> {
  const given = call.query.get('prefix') ?? '/';
  const prefix = ['', '/', WORKSPACE_DIR].includes(given) ? '' : checkedPath(given);
  // A batch, a large content on its way, and what the decoder holds.
  await call.hold(4 * BATCH_BYTES);
  const hash = createHash('sha256');
  const changes = await unpack(call, prefix, hash);
  answerWritten(call, await write(call, { changes, idempotency: idempotencyOf(call, hash.digest('hex')) }));
}

async function unpack(
  call: Call,
  prefix: string,
  hash: { update(data: Buffer): unknown },
): Promise<readonly WriteChange[]> {
  const { store, workspace, signal } = call;
  const dryRun = flagOf(call.query, 'dryRun') ?? false;
  const changes: WriteChange[] = [];
  let batch: { at: number; content: Buffer }[] = [];
  let bytes = 0;
  const flush = async () => {
    const hashes = await store.putBlobs(
      workspace.tenant,
      batch.map((b) => b.content),
      signal,
    );
    batch.forEach(({ at }, i) => {
      const old = changes[at];
      if (old !== undefined) changes[at] = { ...old, sha256: hashes[i] ?? Buffer.alloc(0) };
    });
    batch = [];
    bytes = 0;
  };
  // Bytes as they are: as text, a name that is not UTF-8 would become another one.
  const reader = extract(BYTES);
  const feeding = feed(reader, streamOf(call, ARCHIVE_BYTES + MAX_ENTRIES * 1_024), hash);
  // Its failure is this loop's: the reader is destroyed with it.
  feeding.catch(() => undefined);
  try {
    for await (const entry of reader) {
      const { header } = entry;
      const path = `${prefix}${pathIn(bytesOf(header.name, paxOf(header)['path']))}`;
      if (changes.length === MAX_ENTRIES)
        throw new PermanentError('TooManyFiles', `an archive has at most ${MAX_ENTRIES} entries; send several`);
      if (path === prefix) {
        entry.resume();
      } else if (header.type === 'symlink') {
        entry.resume();
        const target = bytesOf(header.linkname ?? '', paxOf(header)['linkpath']);
        if (target.length === 0 || !isUtf8(target))
          throw new PermanentError('PathRefused', `${escapeName(path)} is a link to nothing, or to no UTF-8`);
        changes.push(change(path, 'symlink', { target: target.toString('utf8') }));
      } else if (header.type === 'directory') {
        entry.resume();
        changes.push(change(path, 'directory'));
      } else if (header.type === 'file' || header.type === 'contiguous-file') {
        const executable = ((header.mode ?? 0) & 0o111) !== 0;
        const size = header.size ?? 0;
        if (size > LARGE_BYTES && !dryRun) {
          const stored = await store.putBlobStream(workspace.tenant, entry as AsyncIterable<Buffer>, signal);
          changes.push(change(path, 'regular', { size: BigInt(stored.size), sha256: stored.sha256, executable }));
          continue;
        }
        if (dryRun) {
          // Nothing is held of what nobody stores.
          const hash = createHash('sha256');
          for await (const piece of entry as AsyncIterable<Buffer>) hash.update(piece);
          changes.push(change(path, 'regular', { size: BigInt(size), sha256: hash.digest(), executable }));
          continue;
        }
        const pieces: Buffer[] = [];
        for await (const piece of entry as AsyncIterable<Buffer>) pieces.push(piece);
        const content = Buffer.concat(pieces);
        changes.push(change(path, 'regular', { size: BigInt(content.length), executable }));
        batch.push({ at: changes.length - 1, content });
        bytes += content.length;
        if (bytes > BATCH_BYTES || batch.length === 2_000) await flush();
      } else {
        throw new PermanentError(
          'PathRefused',
          `${escapeName(path)} is a ${header.type ?? 'special'} entry; an archive has files, folders and symlinks only`,
        );
      }
    }
    await feeding;
  } catch (error) {
    reader.destroy();
    if (error instanceof Error && !('reason' in error) && !signal.aborted)
      throw new PermanentError('BadRequest', `the body is no tar that can be read: ${error.message}`, { cause: error });
    throw error;
  }
  if (batch.length > 0) await flush();
  return changes;
}

async function feed(
  reader: ReturnType<typeof extract>,
  source: AsyncIterable<Buffer>,
  hash: { update(data: Buffer): unknown },
): Promise<void> {
  try {
    for await (const piece of source) {
      hash.update(piece);
      if (!reader.write(piece)) await drained(reader);
    }
    reader.end(undefined);
  } catch (error) {
    reader.destroy(error instanceof Error ? error : new Error(String(error)));
    throw error;
  }
}

function paxOf({ pax }: Header): Readonly<Record<string, string | undefined>> {
  return (pax ?? {}) as Record<string, string>;
}

/** A pax header is UTF-8 by definition, and read as that. */
function bytesOf(latin1: string, pax: string | undefined): Buffer {
  return pax === undefined ? Buffer.from(latin1, 'latin1') : Buffer.from(pax, 'utf8');
}

/** '' for the root itself. */
function pathIn(name: Buffer): string {
  if (/^(\.\/?)*$/.test(name.toString('latin1'))) return '';
  const result = canonicalPath(name);
  if ('refused' in result) throw new PermanentError('PathRefused', result.refused);
  return result.path;
}
