/** What the live API asks beside the tree: pages, versions, values, uploads. */
import { PermanentError } from '../errors.ts';
import type { Database } from './database.ts';
import { newId } from './ids.ts';
import type { FileEntry, Origin, WorkspaceRow } from './rows.ts';
import { endOfPrefix } from './prefix.ts';
import { valueQueries } from './values.ts';

export type VersionRow = Readonly<{
  version: bigint;
  at: Date;
  origin: Origin;
  actor: string | null;
  turn: string | null;
  session: string | null;
  execution: string | null;
  created: number;
  changed: number;
  deleted: number;
}>;
export type UploadRow = Readonly<{ id: string; path: string; actor: string; bytes: bigint; expires_at: Date }>;
export type ValueRow = Readonly<{ key: string; size: number; sha256: Buffer; updated_at: Date }>;
export type ValueOptions = Readonly<{
  /** This content must be there; empty: nothing may be there. */
  ifMatch?: Buffer;
  mustExist?: boolean;
  dryRun?: boolean;
  idempotency?: Readonly<{ key: string; requestSha256: Buffer }>;
}>;
/** Whatever is not `done` has written nothing. `otherRequest`: the Idempotency-Key was used for it. */
export type ValueOutcome = 'done' | 'absent' | 'changed' | 'tooMany' | 'full' | 'otherRequest';

export interface ApiStore {
  /** In order of path, after `after`, as of a version. */
  listFiles(
    workspace: string,
    page: Readonly<{ version: bigint; prefix: string; after: string; limit: number }>,
    signal?: AbortSignal,
  ): Promise<readonly FileEntry[]>;
  /** The newest first, below `before`; `path`: those that changed it. */
  versions(
    workspace: string,
    page: Readonly<{ before: bigint; path?: string; limit: number }>,
    signal?: AbortSignal,
  ): Promise<readonly VersionRow[]>;

  listValues(
    workspace: string,
    page: Readonly<{ prefix: string; after: string; limit: number }>,
    signal?: AbortSignal,
  ): Promise<readonly ValueRow[]>;
  getValue(workspace: string, key: string, signal?: AbortSignal): Promise<Buffer | undefined>;
  /** `undefined` removes. Writes of one workspace's values come one after the other. */
  writeValue(
    workspace: Pick<WorkspaceRow, 'id' | 'tenant'>,
    key: string,
    value: Buffer | undefined,
    options: ValueOptions,
    signal?: AbortSignal,
  ): Promise<ValueOutcome>;

  /** @throws PermanentError QuotaExceeded: so many are open already */
  createUpload(workspace: string, path: string, actor: string, signal?: AbortSignal): Promise<UploadRow>;
  getUpload(workspace: string, id: string, signal?: AbortSignal): Promise<UploadRow | undefined>;
  /**
   * The next part; one that is there already is passed over. @returns how far it is.
   * @param maxOpenBytes of all uploads of the workspace @throws PermanentError Conflict, NotFound, WorkspaceFull
   */
  putPart(
    workspace: string,
    id: string,
    offset: number,
    data: Buffer,
    maxOpenBytes: number,
    signal?: AbortSignal,
  ): Promise<number>;
  readUpload(id: string, signal?: AbortSignal): AsyncIterable<Buffer>;
  dropUpload(workspace: string, id: string, signal?: AbortSignal): Promise<void>;
  /** Those that nobody touched for 24 hours, half-written contents, half-read imports, and answers of old Idempotency-Keys. */
  dropExpired(signal?: AbortSignal): Promise<void>;
}

const COLUMNS = 'path, version, kind, executable, size, sha256, target';
const CHUNK_BYTES = 256 * 1024;
/** Open at once, of one workspace. */
const MAX_UPLOADS = 100;
const UPLOAD = "id, path, actor, bytes, touched_at + interval '24 hours' AS expires_at";

export function apiQueries(db: Database): ApiStore {
  return {
    listFiles: (workspace, { version, prefix, after, limit }, signal) =>
      db.query<FileEntry>(
        'files-page',
        `SELECT ${COLUMNS} FROM (
           SELECT DISTINCT ON (path) ${COLUMNS} FROM file_version
           WHERE workspace = $1 AND version <= $2 AND path > $3 COLLATE "C" AND path >= $4 COLLATE "C" AND ($5::text IS NULL OR path < $5 COLLATE "C")
           ORDER BY path, version DESC) latest
         WHERE kind <> 'deleted' ORDER BY path LIMIT $6`,
        [workspace, version, after, prefix, endOfPrefix(prefix) ?? null, limit],
        signal,
      ),
    versions: (workspace, { before, path, limit }, signal) =>
      db.query<VersionRow>(
        'versions-page',
        `SELECT v.version, v.at, v.origin, v.actor, t.name AS turn, v.session, v.execution, v.created, v.changed, v.deleted
         FROM version_info v LEFT JOIN turn t ON t.id = v.turn
         WHERE v.workspace = $1 AND v.version < $2 AND ($3::text IS NULL OR EXISTS (
           SELECT 1 FROM file_version f WHERE f.workspace = $1 AND f.path = $3 COLLATE "C" AND f.version = v.version))
         ORDER BY v.version DESC LIMIT $4`,
        [workspace, before, path ?? null, limit],
        signal,
      ),

    ...valueQueries(db),

    createUpload: async (workspace, path, actor, signal) => {
      const [row] = await db.query<UploadRow>(
        'upload-create',
        `INSERT INTO upload (id, workspace, path, actor)
           SELECT $1, $2, $3, $4 WHERE (SELECT count(*) FROM upload WHERE workspace = $2) < $5 RETURNING ${UPLOAD}`,
        [newId(), workspace, path, actor, MAX_UPLOADS],
        signal,
      );
      if (row === undefined)
        throw new PermanentError(
          'QuotaExceeded',
          `${MAX_UPLOADS} uploads of this workspace are open; complete or drop one, or wait until they are gone after 24 hours`,
        );
      return row;
    },
    getUpload: async (workspace, id, signal) =>
      (
        await db.query<UploadRow>(
          'upload',
          `SELECT ${UPLOAD} FROM upload WHERE workspace = $1 AND id = $2`,
          [workspace, id],
          signal,
        )
      )[0],
    putPart: (workspace, id, offset, data, maxOpenBytes, signal) =>
      db.transaction(async (query) => {
        const [row] = await query<{ bytes: bigint; parts: number }>(
          'upload-lock',
          'SELECT bytes, parts FROM upload WHERE workspace = $1 AND id = $2 FOR UPDATE',
          [workspace, id],
        );
        if (row === undefined)
          throw new PermanentError(
            'NotFound',
            `there is no upload ${id}; it was completed, dropped, or is over 24 hours old`,
          );
        const have = Number(row.bytes);
        if (offset > have)
          throw new PermanentError(
            'Conflict',
            `upload ${id} has ${have} bytes; the next part starts there, not at ${offset}`,
          );
        const fresh = data.subarray(Math.min(have - offset, data.length));
        const [open] = await query<{ bytes: bigint }>(
          'uploads-bytes',
          'SELECT COALESCE(sum(bytes), 0)::bigint AS bytes FROM upload WHERE workspace = $1',
          [workspace],
        );
        if (Number(open?.bytes ?? 0) + fresh.length > maxOpenBytes)
          throw new PermanentError(
            'WorkspaceFull',
            `the open uploads of this workspace have ${open?.bytes ?? 0} bytes, at most ${maxOpenBytes} are kept; complete or drop one`,
          );
        const pieces = Math.ceil(fresh.length / CHUNK_BYTES);
        for (let i = 0; i < pieces; i += 1)
          await query('upload-chunk', 'INSERT INTO upload_chunk (upload, ordinal, data) VALUES ($1, $2, $3)', [
            id,
            row.parts + i,
            fresh.subarray(i * CHUNK_BYTES, (i + 1) * CHUNK_BYTES),
          ]);
        await query(
          'upload-grow',
          'UPDATE upload SET bytes = bytes + $2, parts = parts + $3, touched_at = now() WHERE id = $1',
          [id, fresh.length, pieces],
        );
        return have + fresh.length;
      }, signal),
    readUpload: async function* (id, signal) {
      for (let ordinal = 0; ; ordinal += 8) {
        const rows = await db.query<{ data: Buffer }>(
          'upload-chunks',
          'SELECT data FROM upload_chunk WHERE upload = $1 AND ordinal >= $2 AND ordinal < $3 ORDER BY ordinal',
          [id, ordinal, ordinal + 8],
          signal,
        );
        for (const { data } of rows) yield data;
        if (rows.length < 8) return;
      }
    },
    dropUpload: async (workspace, id, signal) => {
      await db.query('upload-drop', 'DELETE FROM upload WHERE workspace = $1 AND id = $2', [workspace, id], signal);
    },
    dropExpired: async (signal) => {
      await db.query(
        'uploads-expired',
        "DELETE FROM upload WHERE touched_at < now() - interval '24 hours'",
        [],
        signal,
      );
      await db.query(
        'staging-expired',
        "DELETE FROM blob_staging WHERE created_at < now() - interval '1 hour'",
        [],
        signal,
      );
      await db.query(
        'imports-expired',
        "DELETE FROM import WHERE touched_at < now() - interval '24 hours'",
        [],
        signal,
      );
      await db.query(
        'idempotency-expired',
        "DELETE FROM idempotency_key WHERE created_at < now() - interval '24 hours'",
        [],
        signal,
      );
    },
  };
}
