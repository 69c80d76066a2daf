/** An export, read: contents into the store, the rest checked. Nothing of the workspace changes here. */
import { createHash } from 'node:crypto';
import { extract } from 'tar-stream';
import { KV_BYTES, KV_LIMITS } from '../../proto/live/types.ts';
import { isKey } from '../../proto/live/keys.ts';
import { canonicalPath, escapeName } from '../../proto/paths.ts';
import { PermanentError } from '../errors.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import { exportHeader, historyLine, manifest, type ExportHeader, type HistoryLine } from './export.ts';

export type Imported = Readonly<{
  header: ExportHeader;
  /** By version; of an export of the head alone everything is version 1. */
  versions: ReadonlyMap<number, readonly HistoryLine[]>;
  values: readonly Readonly<{ key: string; value: Buffer }>[];
}>;

/** Of one member that is text; larger ones are no export of ours. */
const TEXT_BYTES = 64 * 1024 * 1024;
/** Lines and members that are held. */
const MAX_ROWS = 1_000_000;
const BATCH_BYTES = 2 * 1024 * 1024;
const LARGE_BYTES = 1024 * 1024;

/**
 * @param keep false: contents are checked and not stored
 * @throws PermanentError BadRequest for what is no whole export, PathRefused for a name that may not be
 */
export async function readExport(
  store: WorkspaceStore,
  tenant: string,
  source: AsyncIterable<Buffer>,
  keep: boolean,
  signal: AbortSignal,
): Promise<Imported> {
  const reader = extract();
  const fed = feed(reader, source, signal);
  fed.catch(() => undefined);
  const seen = new Map<string, string>();
  const head: HistoryLine[] = [];
  const versions = new Map<number, HistoryLine[]>();
  const values: { key: string; value: Buffer }[] = [];
  let valueBytes = 0;
  /** What came along, by hash, with its size. Nothing else may be named: whose it is would be asked of nobody. */
  const brought = new Map<string, number>();
  let header: ExportHeader | undefined;
  let listed: readonly (readonly [string, string])[] | undefined;
  let rows = 0;
  let batch: Buffer[] = [];
  let bytes = 0;
  const flush = async () => {
    if (keep && batch.length > 0) await store.putBlobs(tenant, batch, signal);
    batch = [];
    bytes = 0;
  };
  try {
    for await (const entry of reader) {
      signal.throwIfAborted();
      const { name, type, size = 0 } = entry.header;
      if (listed !== undefined) throw broken(`${name} comes after manifest.json`);
      if (seen.has(name)) throw broken(`${name} comes twice`);
      if ((rows += 1) > MAX_ROWS) throw broken(`it has more than ${MAX_ROWS} members and lines`);
      if (header === undefined) {
        if (name !== 'lathe-export.json') throw broken('it does not begin with lathe-export.json');
        const content = await whole(entry as AsyncIterable<Buffer>, name);
        header = parsed(exportHeader, content.toString('utf8'), name);
        seen.set(name, hashOf(content));
      } else if (name === 'manifest.json') {
        const content = await whole(entry as AsyncIterable<Buffer>, name);
        listed = parsed(manifest, content.toString('utf8'), name).members;
      } else if (name.startsWith('files/') && (type === 'symlink' || type === 'directory')) {
        entry.resume();
        const base = { version: 1, path: pathIn(name), executable: false, size: 0 };
        if (type === 'directory') head.push({ ...base, kind: 'directory' });
        else head.push({ ...base, kind: 'symlink', target: entry.header.linkname ?? '' });
        seen.set(name, '');
      } else if ((name.startsWith('files/') || name.startsWith('blobs/')) && type === 'file') {
        let sha256: string;
        if (size > LARGE_BYTES) {
          sha256 = keep
            ? (await store.putBlobStream(tenant, entry as AsyncIterable<Buffer>, signal)).sha256.toString('hex')
            : await hashed(entry as AsyncIterable<Buffer>);
        } else {
          const content = await whole(entry as AsyncIterable<Buffer>, name);
          sha256 = hashOf(content);
          batch.push(content);
          bytes += content.length;
          if (bytes > BATCH_BYTES || batch.length > 1_000) await flush();
        }
        seen.set(name, sha256);
        brought.set(sha256, size);
        if (name.startsWith('files/')) {
          const executable = ((entry.header.mode ?? 0) & 0o111) !== 0;
          head.push({ version: 1, path: pathIn(name), kind: 'regular', executable, size, sha256 });
        } else if (name !== `blobs/${sha256}`) throw broken(`${name} has the hash ${sha256}`);
      } else if (type === 'file' && /^(history|versions|events|kv)\/\d+\.jsonl$/.test(name)) {
        const content = await whole(entry as AsyncIterable<Buffer>, name);
        seen.set(name, hashOf(content));
        for (const line of content.toString('utf8').split('\n')) {
          if (line === '') continue;
          if ((rows += 1) > MAX_ROWS) throw broken(`it has more than ${MAX_ROWS} members and lines`);
          if (name.startsWith('history/')) {
            const row = parsed(historyLine, line, name);
            if (pathIn(`files${row.path}`) !== row.path) throw broken(`${name} has a path that is not in its one form`);
            checkKind(row, name);
            const of = versions.get(row.version) ?? [];
            versions.set(row.version, of);
            of.push(row);
          } else if (name.startsWith('kv/')) {
            const value = valueOf(line, name);
            valueBytes += value.value.length;
            if (values.length === KV_LIMITS.keys || valueBytes > KV_LIMITS.bytes)
              throw broken(`it has more than ${KV_LIMITS.keys} values or ${KV_LIMITS.bytes} bytes of them`);
            values.push(value);
          }
        }
      } else throw broken(`${name} is nothing that an export has`);
    }
    await fed;
    await flush();
  } catch (error) {
    reader.destroy();
    if (error instanceof Error && !('reason' in error) && !signal.aborted)
      throw broken(`it is no tar that can be read (${error.message})`, error);
    throw error;
  }
  if (header === undefined || listed === undefined) throw broken('it ends before its manifest.json: it was cut');
  for (const [name, sha256] of listed) {
    if (seen.get(name) !== sha256) throw broken(`${name} is not what manifest.json says`);
    seen.delete(name);
  }
  const [extra] = seen.keys();
  if (extra !== undefined) throw broken(`${extra} is not in its manifest.json`);
  if (header.headOnly) {
    versions.clear();
    versions.set(1, head);
  }
  for (const rows of versions.values()) for (const row of rows) checkContent(row, brought);
  const known = [...versions.keys()];
  if (known.some((version) => version > (header.headOnly ? 1 : header.version)))
    throw broken('it has versions after its own');
  return { header, versions, values };
}

function pathIn(name: string): string {
  const result = canonicalPath(name.slice('files'.length));
  if ('refused' in result) throw new PermanentError('PathRefused', `the export can't be taken: ${result.refused}`);
  return result.path;
}

function checkKind({ kind, path, sha256, target }: HistoryLine, name: string): void {
  if ((kind === 'regular') !== (sha256 !== undefined) || (kind === 'symlink') !== (target !== undefined))
    throw broken(`${name} says of ${escapeName(path)} what a ${kind} entry does not have`);
}

/** A hash proves nothing (CONTRACTS 5), and a size that is not its content's would pass every limit. */
function checkContent({ path, size, sha256 }: HistoryLine, brought: ReadonlyMap<string, number>): void {
  if (sha256 === undefined) return;
  const bytes = brought.get(sha256);
  if (bytes === undefined) throw broken(`it names a content for ${escapeName(path)} that it does not bring`);
  if (bytes !== size) throw broken(`it says ${size} of ${escapeName(path)}, whose content has ${bytes} bytes`);
}

function valueOf(line: string, name: string): { key: string; value: Buffer } {
  const row = JSON.parse(line) as { key?: unknown; value?: unknown };
  if (typeof row.key !== 'string' || typeof row.value !== 'string') throw broken(`${name} has a line that is no value`);
  const value = Buffer.from(row.value, 'base64');
  if (!isKey(row.key) || value.length > KV_BYTES)
    throw broken(`${name} has a key or value that a workspace may not have`);
  return { key: row.key, value };
}

function parsed<T>(
  schema: { safeParse(value: unknown): { success: true; data: T } | { success: false } },
  text: string,
  name: string,
): T {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw broken(`${name} is not JSON`);
  }
  const result = schema.safeParse(value);
  if (!result.success) throw broken(`${name} is not as this release writes it; its format may be newer`);
  return result.data;
}

async function whole(entry: AsyncIterable<Buffer>, name: string): Promise<Buffer> {
  const pieces: Buffer[] = [];
  let bytes = 0;
  for await (const piece of entry) {
    bytes += piece.length;
    if (bytes > TEXT_BYTES) throw broken(`${name} has more than ${TEXT_BYTES} bytes`);
    pieces.push(piece);
  }
  return Buffer.concat(pieces, bytes);
}

async function hashed(entry: AsyncIterable<Buffer>): Promise<string> {
  const hash = createHash('sha256');
  for await (const piece of entry) hash.update(piece);
  return hash.digest('hex');
}

function hashOf(content: Buffer): string {
  return createHash('sha256').update(content).digest('hex');
}

function broken(why: string, cause?: unknown): PermanentError {
  return new PermanentError('BadRequest', `this is no whole export of a workspace: ${why}`, { cause });
}

async function feed(
  reader: ReturnType<typeof extract>,
  source: AsyncIterable<Buffer>,
  signal: AbortSignal,
): Promise<void> {
  try {
    for await (const piece of source) {
      signal.throwIfAborted();
      if (!reader.write(piece))
        await new Promise<void>((resolve) => {
          const done = () => {
            reader.off('drain', done).off('close', done);
            resolve();
          };
          reader.once('drain', done).once('close', done);
        });
      if (reader.destroyed) return;
    }
    reader.end(undefined);
  } catch (error) {
    reader.destroy(error instanceof Error ? error : new Error(String(error)));
    throw error;
  }
}
