/** One content that is too large for memory: staged as it arrives, then a blob at once. */
import { createHash } from 'node:crypto';
import type { Database } from './database.ts';
import { newId } from './ids.ts';
import type { WorkspaceStore } from './workspace-store.ts';

const CHUNK_BYTES = 256 * 1024;
/** Chunks in one statement. */
const STAGED_AT_ONCE = 8;
/** Moved by one statement: well below the time that a statement may take. */
const MOVED_AT_ONCE = 128;

export function blobStreamQueries(db: Database): Pick<WorkspaceStore, 'putBlobStream'> {
  return {
    putBlobStream: async (tenant, pieces, signal) => {
      const id = newId();
      const hash = createHash('sha256');
      let size = 0;
      let ordinal = 0;
      let staged: Buffer[] = [];
      const stage = async () => {
        await db.query(
          `blob-stage-${staged.length}`,
          `INSERT INTO blob_staging (id, ordinal, data) VALUES ${staged.map((_, i) => `($1, $2::int + ${i}, $${i + 3})`).join(', ')}`,
          [id, ordinal, ...staged],
          signal,
        );
        ordinal += staged.length;
        staged = [];
      };
      try {
        for await (const chunk of chunksOf(pieces)) {
          hash.update(chunk);
          size += chunk.length;
          staged.push(chunk);
          if (staged.length === STAGED_AT_ONCE) await stage();
        }
        if (staged.length > 0) await stage();
        const sha256 = hash.digest();
        signal?.throwIfAborted();
        await move(db, { tenant, id, sha256, size, chunks: ordinal });
        return { sha256, size };
      } finally {
        // Also when it was moved: what is staged is nobody's.
        if (ordinal > 0)
          await db
            .query('blob-unstage', 'DELETE FROM blob_staging WHERE id = $1', [id])
            .catch(() => undefined /* Its age tells. */);
      }
    },
  };
}

/** Blob and chunks together, so that no reader finds the one without the others; nothing where the content is known. */
async function move(
  db: Database,
  of: Readonly<{ tenant: string; id: string; sha256: Buffer; size: number; chunks: number }>,
): Promise<void> {
  await db.transaction(async (query) => {
    const made = await query(
      'blob-make',
      'INSERT INTO blob (tenant, sha256, size) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING 1',
      [of.tenant, of.sha256, of.size],
    );
    if (made.length === 0) return;
    for (let from = 0; from < of.chunks; from += MOVED_AT_ONCE) {
      await query(
        'blob-move',
        `INSERT INTO blob_chunk (tenant, sha256, ordinal, data)
           SELECT $1, $2, ordinal, data FROM blob_staging WHERE id = $3 AND ordinal >= $4 AND ordinal < $5`,
        [of.tenant, of.sha256, of.id, from, from + MOVED_AT_ONCE],
      );
    }
  });
}

/** Cut anew: each of the chunk size but the last. */
async function* chunksOf(pieces: AsyncIterable<Buffer>): AsyncIterable<Buffer> {
  let held: Buffer[] = [];
  let bytes = 0;
  for await (const piece of pieces) {
    for (let at = 0; at < piece.length;) {
      const part = piece.subarray(at, at + CHUNK_BYTES - bytes);
      held.push(part);
      bytes += part.length;
      at += part.length;
      if (bytes < CHUNK_BYTES) continue;
      yield whole(held, bytes);
      held = [];
      bytes = 0;
    }
  }
  if (bytes > 0) yield whole(held, bytes);
}

function whole(parts: readonly Buffer[], bytes: number): Buffer {
  const [first] = parts;
  return first !== undefined && parts.length === 1 ? first : Buffer.concat(parts, bytes);
}
