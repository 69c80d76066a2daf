/** Contents by hash, once per tenant. */
import { createHash, randomBytes } from 'node:crypto';
import { PermanentError } from '../errors.ts';
import type { Database } from './database.ts';
import type { WorkspaceStore } from './workspace-store.ts';

export const CHUNK_BYTES = 256 * 1024;
/** Bytes in one statement at most; more go in several. */
const BATCH_BYTES = 4 * 1024 * 1024;

/** Chunks in one statement while a content of unknown length arrives. */
const STREAM_CHUNKS = 4;

export function blobQueries(db: Database): Pick<WorkspaceStore, 'putBlobs' | 'putBlobStream' | 'readBlob'> {
  const putBlobs: WorkspaceStore['putBlobs'] = async (tenant, contents, signal) => {
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
  };
  return {
    putBlobs,
    putBlobStream: (tenant, content, signal) => putStream(db, putBlobs, tenant, content, signal),
    readBlob: async function* (tenant, sha256, signal) {
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
      for (let ordinal = 0; ordinal < chunks; ordinal += 1) {
        const [row] = await db.query<{ data: Buffer }>(
          'blob-chunk',
          'SELECT data FROM blob_chunk WHERE tenant = $1 AND sha256 = $2 AND ordinal = $3',
          [tenant, sha256, ordinal],
          signal,
        );
        if (row !== undefined) yield row.data;
      }
    },
  };
}

/**
 * Stored under a random name until its hash is known, then renamed: rows are moved, bytes are not, because unchanged
 * values out of line stay where they are. Nothing can refer to the name, so a crash leaves what collection removes.
 */
async function putStream(
  db: Database,
  putBlobs: WorkspaceStore['putBlobs'],
  tenant: string,
  content: AsyncIterable<Buffer>,
  signal?: AbortSignal,
): Promise<{ sha256: Buffer; size: number }> {
  const staged = randomBytes(32);
  const hash = createHash('sha256');
  let size = 0;
  let stored = 0;
  try {
    let waiting: Buffer[] = [];
    for await (const chunk of chunked(content)) {
      if (waiting.length === STREAM_CHUNKS) {
        await store(waiting);
        waiting = [];
      }
      hash.update(chunk);
      size += chunk.length;
      waiting.push(chunk);
    }
    if (stored === 0) {
      const [sha256] = await putBlobs(tenant, [Buffer.concat(waiting)], signal);
      return { sha256: sha256 ?? hash.digest(), size };
    }
    await store(waiting);
    const sha256 = hash.digest();
    await db.transaction(async (query) => {
      const made = await query(
        'blob-make',
        'INSERT INTO blob (tenant, sha256, size) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING sha256',
        [tenant, sha256, size],
      );
      if (made.length > 0)
        await query('blob-rename', 'UPDATE blob_chunk SET sha256 = $3 WHERE tenant = $1 AND sha256 = $2', [
          tenant,
          staged,
          sha256,
        ]);
      await query('blob-unstage', 'DELETE FROM blob WHERE tenant = $1 AND sha256 = $2', [tenant, staged]);
    }, signal);
    return { sha256, size };
  } catch (error) {
    if (stored > 0)
      await db
        .query('blob-unstage', 'DELETE FROM blob WHERE tenant = $1 AND sha256 = $2', [tenant, staged])
        .catch(() => undefined);
    throw error;
  }

  async function store(chunks: readonly Buffer[]): Promise<void> {
    await db.query(
      'blob-stage',
      `WITH b AS (
         INSERT INTO blob (tenant, sha256, size, location) VALUES ($1, $2, 0, 'staging') ON CONFLICT DO NOTHING
       )
       INSERT INTO blob_chunk (tenant, sha256, ordinal, data) SELECT $1, $2, * FROM unnest($3::int[], $4::bytea[])`,
      [tenant, staged, chunks.map((_, i) => stored + i), chunks],
      signal,
    );
    stored += chunks.length;
  }
}

/** Pieces of exactly CHUNK_BYTES, but for the last. */
async function* chunked(content: AsyncIterable<Buffer>): AsyncIterable<Buffer> {
  let pieces: Buffer[] = [];
  let length = 0;
  for await (let piece of content) {
    while (length + piece.length >= CHUNK_BYTES) {
      const take = CHUNK_BYTES - length;
      yield Buffer.concat([...pieces, piece.subarray(0, take)]);
      piece = piece.subarray(take);
      pieces = [];
      length = 0;
    }
    if (piece.length > 0) {
      pieces.push(piece);
      length += piece.length;
    }
  }
  if (length > 0) yield Buffer.concat(pieces);
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
