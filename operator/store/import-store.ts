/** An import: what it reads is kept aside, and is the workspace's all at once or not at all (migrations/0005). */
import { PermanentError, TransientError } from '../errors.ts';
import type { Database } from './database.ts';
import { newId } from './ids.ts';
import type { Lease } from './rows.ts';

export type ImportKind = 'content' | 'file' | 'history' | 'version' | 'event' | 'session' | 'turn' | 'execution' | 'kv';
export type ImportFinish = Readonly<{
  head: number;
  seq: number;
  headOnly: boolean;
  /** Everything is checked, and then forgotten. */
  dryRun: boolean;
  /** How many of each were staged. */
  rows: Readonly<Partial<Record<ImportKind, number>>>;
  event: Readonly<{ type: string; v: number; actor?: string; payload: object }>;
  /** The answer is kept 24 hours, with version, files and bytes added. */
  idempotency?: Readonly<{ key: string; requestSha256: Buffer; response: object }>;
}>;

/** All throw FenceLost as WorkspaceStore does. */
export interface ImportStore {
  /** Sweeps away what an import before left. @throws PermanentError Conflict when the workspace is not empty */
  beginImport(lease: Lease, signal?: AbortSignal): Promise<string>;
  /** @throws TransientError Conflict when another import began; PermanentError BadRequest */
  stageImport(
    lease: Lease,
    id: string,
    kind: ImportKind,
    lines: readonly object[],
    signal?: AbortSignal,
  ): Promise<void>;
  /** @throws as stageImport and beginImport; PermanentError BadRequest when the parts do not fit together */
  finishImport(
    lease: Lease,
    id: string,
    finish: ImportFinish,
    signal?: AbortSignal,
  ): Promise<Readonly<{ head: bigint; files: bigint; bytes: bigint }>>;
  /** Of an import that came to nothing. */
  dropImport(workspace: string, id: string): Promise<void>;
}

/** Of a log of millions of events. */
const FINISH_TIMEOUT = '600s';

export function importQueries(db: Database): ImportStore {
  const fence = ({ workspace, incarnation, epoch, token }: Lease) => [workspace, incarnation, epoch, token];
  return {
    beginImport: async (lease, signal) => {
      const id = newId();
      await db.query('import-begin', 'SELECT import_begin($1, $2, $3, $4, $5)', [...fence(lease), id], signal);
      return id;
    },
    stageImport: async (lease, id, kind, lines, signal) => {
      if (lines.length === 0) return;
      await data(
        db.query(
          'import-stage',
          'SELECT import_stage($1, $2, $3, $4, $5, $6, $7)',
          [...fence(lease), id, kind, JSON.stringify(lines)],
          signal,
        ),
      );
    },
    finishImport: async (lease, id, { idempotency, ...finish }, signal) => {
      const p = {
        ...finish,
        ...(idempotency === undefined
          ? {}
          : { idempotency: { ...idempotency, requestSha256: idempotency.requestSha256.toString('hex') } }),
      };
      const row = await data(
        db.transaction(async (query) => {
          await query('import-timeout', `SET LOCAL statement_timeout = '${FINISH_TIMEOUT}'`, []);
          const [done] = await query<{ head: bigint; files: bigint; bytes: bigint }>(
            'import-finish',
            'SELECT head, files, bytes FROM import_finish($1, $2, $3, $4, $5, $6)',
            [...fence(lease), id, JSON.stringify(p)],
          );
          return done;
        }, signal),
      );
      if (row === undefined) throw new Error('import_finish returned nothing');
      if (!finish.dryRun)
        void db.query('notify-projection', "SELECT pg_notify('lathe_projection', '')", []).catch(() => undefined);
      return row;
    },
    dropImport: async (workspace, id) => {
      await db.query('import-drop', 'DELETE FROM import WHERE workspace = $1 AND id = $2', [workspace, id]);
    },
  };
}

/** What Postgres can't take of an archive's data is the archive's fault; what was collected under it may be sent again. */
async function data<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : '';
    if (code === '23503')
      throw new TransientError('Conflict', 'contents of this import were collected meanwhile; import again', {
        cause: error,
      });
    // 22 data that is none, 23 rows that are there twice or break a rule, 54 too large or too deep.
    if (/^(22|23|54)/.test(code))
      throw new PermanentError(
        'BadRequest',
        `this is no whole export of a workspace: its rows can't be kept (${code})`,
        {
          cause: error,
        },
      );
    throw error;
  }
}
