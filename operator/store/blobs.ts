/** Contents by hash, once per tenant. */
import { createHash } from 'node:crypto';
import { PermanentError } from '../errors.ts';
import type { Database } from './database.ts';
import type { WorkspaceStore } from './workspace-store.ts';

export const CHUNK_BYTES = 256 * 1024;
/** Bytes in one statement at most; more go in several. */
const BATCH_BYTES = 4 * 1024 * 1024;
/** Chunks; as many again are read ahead. */
const READ_AT_ONCE = 4;

export function blobQueries(db: Database): Pick<WorkspaceStore, 'putBlobs' | 'readBlob' | 'readBlobs'> {
  return {
    putBlobs: async (tenant, contents, signal) => {
      const hashes = contents.map((content) => createHash('sha256').update(content).digest());
      const wanted = new Map(
        hashes.map((hash, i) => [hash.toString('hex'), { hash, content: contents[i] ?? Buffer.alloc(0) }]),
      );
      const there = await db.query<{ sha256: Buffer }>(
        'blobs-there',
        'SELECT sha256 FROM blob WHERE tenant = $1 AND sha256 = ANY($2::bytea[])',
        [tenant, [...wanted.values()].map((w) => w.hash)],
        signal,
      );
      for (const { sha256 } of there) wanted.delete(sha256.toString('hex'));
      for (const batch of batches([...wanted.values()])) await insert(db, tenant, batch, signal);
      return hashes;
    },
    readBlob: async function* (tenant, sha256, signal, from = 0) {
      const [blob] = await db.query<{ size: bigint }>(
        'blob',
        'SELECT size FROM blob WHERE tenant = $1 AND sha256 = $2',
        [tenant, sha256],
        signal,
      );
      if (blob === undefined) {
        throw new PermanentError(
          'NotFound',
          `no content with hash ${sha256.toString('hex')} is stored; it was collected or never committed`,
        );
      }
      const chunks = Math.ceil(Number(blob.size) / CHUNK_BYTES);
      const read = (ordinal: number) =>
        db.bytes(
          `SELECT data FROM blob_chunk WHERE tenant = '${uuid(tenant)}' AND sha256 = '\\x${sha256.toString('hex')}'
             AND ordinal >= ${ordinal} AND ordinal < ${ordinal + READ_AT_ONCE} ORDER BY ordinal`,
          signal,
        );
      let skip = from % CHUNK_BYTES;
      let ordinal = Math.floor(from / CHUNK_BYTES);
      let next = read(ordinal);
      // What is being read ahead when nobody wants more is nobody's error.
      next.catch(() => undefined);
      for (; ordinal < chunks; ordinal += READ_AT_ONCE) {
        const rows = await next;
        if (ordinal + READ_AT_ONCE < chunks) {
          next = read(ordinal + READ_AT_ONCE);
          next.catch(() => undefined);
        }
        for (const data of rows) {
          if (skip < data.length) yield skip === 0 ? data : data.subarray(skip);
          skip = 0;
        }
      }
    },
    readBlobs: async (tenant, sha256, signal) => {
      const found = new Map<string, Buffer>();
      if (sha256.length === 0) return found;
      const rows = await db.query<{ sha256: Buffer; data: Buffer | null }>(
        'blobs-read',
        `SELECT b.sha256, c.data FROM blob b LEFT JOIN blob_chunk c USING (tenant, sha256)
           WHERE b.tenant = $1 AND b.sha256 = ANY($2::bytea[]) AND b.size <= ${CHUNK_BYTES}`,
        [tenant, sha256],
        signal,
      );
      for (const row of rows) found.set(row.sha256.toString('hex'), row.data ?? Buffer.alloc(0));
      return found;
    },
  };
}

/** For a statement that takes no parameters. @throws when it is none */
function uuid(text: string): string {
  if (!/^[0-9a-f-]{36}$/i.test(text)) throw new Error(`${text} is no uuid`);
  return text;
}

type Content = Readonly<{ hash: Buffer; content: Buffer }>;

/** Blob and chunks in one statement: no reader ever finds the one without the others. */
async function insert(db: Database, tenant: string, batch: readonly Content[], signal?: AbortSignal): Promise<void> {
  const chunks = batch.flatMap(({ hash, content }) =>
    Array.from({ length: Math.ceil(content.length / CHUNK_BYTES) }, (_, ordinal) => ({
      hash,
      ordinal,
      data: content.subarray(ordinal * CHUNK_BYTES, (ordinal + 1) * CHUNK_BYTES),
    })),
  );
  await db.query(
    'blobs-put',
    `WITH b AS (
       INSERT INTO blob (tenant, sha256, size) SELECT $1, * FROM unnest($2::bytea[], $3::bigint[]) ON CONFLICT DO NOTHING RETURNING sha256
     )
     INSERT INTO blob_chunk (tenant, sha256, ordinal, data)
       SELECT $1, c.sha256, c.ordinal, c.data FROM unnest($4::bytea[], $5::int[], $6::bytea[]) AS c (sha256, ordinal, data) JOIN b USING (sha256)`,
    [
      tenant,
      batch.map((b) => b.hash),
      batch.map((b) => b.content.length),
      chunks.map((c) => c.hash),
      chunks.map((c) => c.ordinal),
      chunks.map((c) => c.data),
    ],
    signal,
  );
}

function* batches(contents: readonly Content[]): Iterable<readonly Content[]> {
  let batch: Content[] = [];
  let bytes = 0;
  for (const content of contents) {
    if (batch.length > 0 && bytes + content.content.length > BATCH_BYTES) {
      yield batch;
      batch = [];
      bytes = 0;
    }
    batch.push(content);
    bytes += content.content.length;
  }
  if (batch.length > 0) yield batch;
}
