/** Contents by hash, once per tenant, in chunks of 256 KiB that are compressed where that helps. */
import { createHash, randomUUID } from 'node:crypto';
import { zstdCompressSync, zstdDecompressSync, constants } from 'node:zlib';
import { PermanentError } from '../errors.ts';
import type { Database } from './database.ts';
import type { WorkspaceStore } from './workspace-store.ts';

export const CHUNK_BYTES = 256 * 1024;
/** Bytes in one statement at most, either way; more go in several. */
const BATCH_BYTES = 4 * 1024 * 1024;
/** Chunks that are read at once. */
const READ_CHUNKS = 4;
/** Below it compressing costs more time than the bytes are worth. */
const COMPRESS_FROM_BYTES = 4 * 1024;
/** Up to this a content is put without asking first whether it is there. */
const UNASKED_BYTES = 64 * 1024;
const LEVEL = { params: { [constants.ZSTD_c_compressionLevel]: 1 } };

/** What nothing names is collected after a day (migrations/0005); whoever puts it again has at least half of one. */
const YOUNG = "interval '12 hours'";
const AGAIN = `ON CONFLICT (tenant, sha256) DO UPDATE SET created_at = now() WHERE blob.created_at < now() - ${YOUNG}`;

type Codec = 'identity' | 'zstd';
type Encoded = Readonly<{ hash: Buffer; size: number; codec: Codec; chunks: readonly Buffer[] }>;

export function blobQueries(
  db: Database,
): Pick<WorkspaceStore, 'putBlobs' | 'putBlobStream' | 'readBlob' | 'readSmallBlobs'> {
  const putBlobs: WorkspaceStore['putBlobs'] = async (tenant, contents, signal) => {
    const hashes = contents.map((content) => createHash('sha256').update(content).digest());
    const wanted = new Map(
      hashes.map((hash, i) => [hash.toString('hex'), { hash, content: contents[i] ?? Buffer.alloc(0) }]),
    );
    if (contents.reduce((sum, content) => sum + content.length, 0) > UNASKED_BYTES) {
      const there = await db.query<{ sha256: Buffer }>(
        'blobs-there',
        `SELECT b.sha256 FROM unnest($2::bytea[]) h
         CROSS JOIN LATERAL (SELECT sha256 FROM blob WHERE tenant = $1 AND sha256 = h AND created_at > now() - ${YOUNG} LIMIT 1) b`,
        [tenant, [...wanted.values()].map((w) => w.hash)],
        signal,
      );
      for (const { sha256 } of there) wanted.delete(sha256.toString('hex'));
    }
    // In one order, whoever puts them: two that put the same ones at once must not wait for each other.
    const inOrder = [...wanted.values()].sort((a, b) => Buffer.compare(a.hash, b.hash));
    for (const batch of batches(inOrder)) await insert(db, tenant, batch.map(encode), signal);
    return hashes;
  };

  return {
    putBlobs,
    putBlobStream: async (tenant, source, signal) => {
      const hash = createHash('sha256');
      const id = randomUUID();
      let held: Buffer[] = [];
      let heldBytes = 0;
      let size = 0;
      let ordinal = 0;
      let codec: Codec | undefined;
      const stage = async (all: boolean) => {
        const bytes = Buffer.concat(held, heldBytes);
        const end = all ? bytes.length : bytes.length - (bytes.length % CHUNK_BYTES);
        codec ??= begin(bytes)[0];
        const chunks = chunksOf(bytes.subarray(0, end), codec);
        await db.query(
          'blob-stage',
          `INSERT INTO blob_staging (id, ordinal, data)
           SELECT $1, $2::int + n - 1, substring($3::bytea FROM o FOR l) FROM unnest($4::int[], $5::int[]) WITH ORDINALITY AS c (o, l, n)`,
          [id, ordinal, ...joined(chunks)],
          signal,
        );
        ordinal += chunks.length;
        held = [bytes.subarray(end)];
        heldBytes = bytes.length - end;
      };
      try {
        for await (const piece of source) {
          signal?.throwIfAborted();
          hash.update(piece);
          size += piece.length;
          held.push(piece);
          heldBytes += piece.length;
          if (heldBytes >= BATCH_BYTES) await stage(false);
        }
        if (ordinal === 0) {
          const [sha256] = await putBlobs(tenant, [Buffer.concat(held, heldBytes)], signal);
          return { sha256: sha256 ?? hash.digest(), size };
        }
        if (heldBytes > 0) await stage(true);
        const sha256 = hash.digest();
        await db.transaction(async (query) => {
          await query('blob-staged-timeout', "SET LOCAL statement_timeout = '300s'", []);
          await query(
            'blob-staged',
            `WITH b AS (
               INSERT INTO blob (tenant, sha256, size, codec) VALUES ($1, $2, $3, $4) ${AGAIN} RETURNING tenant, sha256, xmax = 0 AS made
             )
             INSERT INTO blob_chunk (tenant, sha256, ordinal, data)
               SELECT b.tenant, b.sha256, s.ordinal, s.data FROM b JOIN blob_staging s ON s.id = $5 WHERE b.made`,
            [tenant, sha256, size, codec, id],
          );
        }, signal);
        return { sha256, size };
      } finally {
        if (ordinal > 0)
          await db.query('blob-unstage', 'DELETE FROM blob_staging WHERE id = $1', [id]).catch(() => undefined);
      }
    },
    readBlob: async function* (tenant, sha256, signal, range) {
      const [blob] = await db.query<{ size: bigint; codec: Codec }>(
        'blob',
        'SELECT size, codec FROM blob WHERE tenant = $1 AND sha256 = $2',
        [tenant, sha256],
        signal,
      );
      if (blob === undefined) {
        throw new PermanentError(
          'NotFound',
          `no content with hash ${sha256.toString('hex')} is stored; it was collected or never committed`,
        );
      }
      const from = range?.from ?? 0;
      const to = Math.min(range?.to ?? Number(blob.size), Number(blob.size));
      const end = Math.ceil(to / CHUNK_BYTES);
      const read = async (first: number) => {
        if (first >= end) return [];
        return await db.bytes(
          `SELECT data FROM blob_chunk WHERE tenant = '${uuid(tenant)}' AND sha256 = '\\x${sha256.toString('hex')}'
             AND ordinal >= ${first} AND ordinal < ${Math.min(first + READ_CHUNKS, end)} ORDER BY ordinal`,
          signal,
        );
      };
      let next = read(Math.floor(from / CHUNK_BYTES));
      for (let ordinal = Math.floor(from / CHUNK_BYTES); ordinal < end; ordinal += READ_CHUNKS) {
        const chunks = await next;
        next = read(ordinal + READ_CHUNKS);
        // Read ahead: when nobody wants more, nobody hears that it failed.
        next.catch(() => undefined);
        for (const [i, chunk] of chunks.entries()) {
          const start = (ordinal + i) * CHUNK_BYTES;
          const data = decode(chunk, blob.codec);
          yield data.subarray(Math.max(0, from - start), Math.min(data.length, to - start));
        }
      }
    },
    readSmallBlobs: async (tenant, sha256, signal) => {
      const rows = await db.query<{ sha256: Buffer; zstd: boolean; data: Buffer | null }>(
        'blobs-small',
        `SELECT b.sha256, b.codec = 'zstd' AS zstd, c.data FROM unnest($2::bytea[]) h
           CROSS JOIN LATERAL (SELECT * FROM blob WHERE tenant = $1 AND sha256 = h AND size <= ${CHUNK_BYTES} LIMIT 1) b
           LEFT JOIN LATERAL (SELECT data FROM blob_chunk WHERE tenant = $1 AND sha256 = h AND ordinal = 0 LIMIT 1) c ON true`,
        [tenant, sha256],
        signal,
      );
      return new Map(
        rows.map((row) => [
          row.sha256.toString('hex'),
          row.data === null ? Buffer.alloc(0) : decode(row.data, row.zstd ? 'zstd' : 'identity'),
        ]),
      );
    },
  };
}

/** For a statement that takes no parameters. @throws when it is none */
function uuid(text: string): string {
  if (!/^[0-9a-f-]{36}$/i.test(text)) throw new Error(`${text} is no uuid`);
  return text;
}

/** Blobs and chunks in one statement: no reader ever finds the one without the others. */
async function insert(db: Database, tenant: string, batch: readonly Encoded[], signal?: AbortSignal): Promise<void> {
  const chunks = batch.flatMap(({ chunks: all }, of) => all.map((data, ordinal) => ({ of: of + 1, ordinal, data })));
  const [data, offsets, lengths] = joined(chunks.map((chunk) => chunk.data));
  await db.query(
    'blobs-put',
    `WITH b AS (
       INSERT INTO blob (tenant, sha256, size, codec) SELECT $1, * FROM unnest($2::bytea[], $3::bigint[], $4::text[])
         ${AGAIN} RETURNING sha256, xmax = 0 AS made
     )
     INSERT INTO blob_chunk (tenant, sha256, ordinal, data)
       SELECT $1, b.sha256, c.ordinal, substring($5::bytea FROM c.o FOR c.l)
       FROM unnest($6::int[], $7::int[], $8::int[], $9::int[]) AS c (of, ordinal, o, l) JOIN b ON b.made AND b.sha256 = ($2::bytea[])[c.of]`,
    [
      tenant,
      batch.map((b) => b.hash),
      batch.map((b) => b.size),
      batch.map((b) => b.codec),
      data,
      chunks.map((c) => c.of),
      chunks.map((c) => c.ordinal),
      offsets,
      lengths,
    ],
    signal,
  );
}

/** Many buffers as one parameter, which goes over in binary; an array of them would go as hexadecimal text. From 1. */
function joined(buffers: readonly Buffer[]): [data: Buffer, offsets: number[], lengths: number[]] {
  const offsets: number[] = [];
  let next = 1;
  for (const { length } of buffers) {
    offsets.push(next);
    next += length;
  }
  return [Buffer.concat(buffers), offsets, buffers.map(({ length }) => length)];
}

function encode({ hash, content }: Readonly<{ hash: Buffer; content: Buffer }>): Encoded {
  const [codec, first] = begin(content);
  return { hash, size: content.length, codec, chunks: [...first, ...chunksOf(content.subarray(CHUNK_BYTES), codec)] };
}

/** By its first chunk, which comes with it as it is kept: what does not shrink by a tenth stays as it is. */
function begin(content: Buffer): [codec: Codec, first: Buffer[]] {
  const chunk = content.subarray(0, CHUNK_BYTES);
  if (chunk.length === 0) return ['identity', []];
  if (chunk.length < COMPRESS_FROM_BYTES) return ['identity', [chunk]];
  const compressed = zstdCompressSync(chunk, LEVEL);
  return compressed.length < chunk.length * 0.9 ? ['zstd', [compressed]] : ['identity', [chunk]];
}

function chunksOf(content: Buffer, codec: Codec): Buffer[] {
  return Array.from({ length: Math.ceil(content.length / CHUNK_BYTES) }, (_, ordinal) => {
    const chunk = content.subarray(ordinal * CHUNK_BYTES, (ordinal + 1) * CHUNK_BYTES);
    return codec === 'zstd' ? zstdCompressSync(chunk, LEVEL) : chunk;
  });
}

function decode(data: Buffer, codec: Codec): Buffer {
  return codec === 'zstd' ? zstdDecompressSync(data, { maxOutputLength: CHUNK_BYTES }) : data;
}

function* batches<T extends Readonly<{ content: Buffer }>>(contents: readonly T[]): Iterable<readonly T[]> {
  let batch: T[] = [];
  let bytes = 0;
  for (const item of contents) {
    if (batch.length > 0 && bytes + item.content.length > BATCH_BYTES) {
      yield batch;
      batch = [];
      bytes = 0;
    }
    batch.push(item);
    bytes += item.content.length;
  }
  if (batch.length > 0) yield batch;
}
