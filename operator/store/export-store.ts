/**
 * What an export is made of, in pages. Lines are written by Postgres, once, for planning and for sending alike: planning
 * needs their length and hash and none of their text. `jsonb` has one form, so the same rows are the same bytes.
 */
import type { Database } from './database.ts';
import type { FileKind } from './rows.ts';

/** Of an export: what it is of. `state`: the hash of what `exportState` gave, for what has no versions of its own. */
export type Section = 'history' | 'versions' | 'events';
export type Cursor = Readonly<{ a: bigint; b: string }>;
export type Scope = Readonly<{ workspace: string; tenant: string; version: bigint; seq: bigint }>;
export type LinesPage = Readonly<{ rows: number; bytes: number; sha256: Buffer; last: Cursor }>;
export type ExportEntry = Readonly<{
  path: string;
  kind: FileKind;
  executable: boolean;
  size: bigint;
  sha256: Buffer | null;
  target: string | null;
  /** Of the version that wrote it; seconds. */
  mtime: number;
}>;
export type StateKind = 'executions' | 'kv' | 'sessions' | 'turns';

export interface ExportStore {
  /** When the event `seq` was written; undefined where there is none. */
  exportTime(scope: Scope, signal?: AbortSignal): Promise<string | undefined>;
  /** The tree at the version, ordered by path. */
  exportTree(scope: Scope, after: string, limit: number, signal?: AbortSignal): Promise<readonly ExportEntry[]>;
  /** Contents that the history, the log and `also` name and that no file of the tree has, ordered by hash. */
  exportBlobs(
    scope: Scope,
    also: readonly Buffer[],
    after: Buffer,
    limit: number,
    signal?: AbortSignal,
  ): Promise<readonly Readonly<{ sha256: Buffer; size: bigint }>[]>;
  /** Length and hash of the next page's lines; `rows` 0: there is none. */
  exportPlan(scope: Scope, section: Section, after: Cursor, limit: number, signal?: AbortSignal): Promise<LinesPage>;
  /** The lines of such a page. */
  exportLines(scope: Scope, section: Section, after: Cursor, limit: number, signal?: AbortSignal): Promise<Buffer>;
  /**
   * What may change without a version or an event, all as of one moment, which is the version and seq of the answer.
   * `take` gets lines in their order, and may take as long as a statement may.
   */
  exportState(
    workspace: string,
    kinds: readonly StateKind[],
    take: (kind: StateKind, lines: string, hashes: readonly Buffer[]) => Promise<void>,
    signal?: AbortSignal,
  ): Promise<Readonly<{ version: bigint; seq: bigint }>>;
}

/** How each section reads: $1 workspace, $2 version, $3 seq, $4 and $5 the cursor, $6 rows. */
const SECTIONS: Readonly<Record<Section, string>> = {
  history: `SELECT version AS a, path AS b, jsonb_strip_nulls(jsonb_build_object(
      'version', version, 'path', path, 'kind', kind, 'executable', executable, 'size', size, 'sha256', encode(sha256, 'hex'),
      'target', target, 'execution', exported_id(workspace, execution))) AS line
    FROM file_version WHERE workspace = $1 AND version <= $2 AND $3::bigint IS NOT NULL AND version >= $4 AND (version, path) > ($4, $5 COLLATE "C")
    ORDER BY version, path LIMIT $6`,
  versions: `SELECT version AS a, ''::text AS b, jsonb_strip_nulls(jsonb_build_object(
      'version', version, 'seq', seq, 'at', exported_time(at), 'origin', origin, 'actor', actor, 'turn', exported_id(workspace, turn),
      'session', session, 'execution', exported_id(workspace, execution), 'created', created, 'changed', changed, 'deleted', deleted)) AS line
    FROM version_info WHERE workspace = $1 AND version <= $2 AND $3::bigint IS NOT NULL AND version > $4 AND $5::text IS NOT NULL
    ORDER BY version LIMIT $6`,
  events: `SELECT seq AS a, ''::text AS b, jsonb_strip_nulls(jsonb_build_object(
      'seq', seq, 'session', session, 'turn', exported_id(workspace, turn), 'execution', exported_id(workspace, execution),
      'type', type, 'v', v, 'actor', actor, 'at', exported_time(at), 'payloadSha256', encode(payload_sha256, 'hex')))
      || CASE WHEN payload_sha256 IS NULL THEN jsonb_build_object('payload', payload) ELSE '{}' END AS line
    FROM event WHERE workspace = $1 AND $2::bigint IS NOT NULL AND seq <= $3 AND seq > $4 AND $5::text IS NOT NULL
    ORDER BY seq LIMIT $6`,
};

/** $1 workspace. Old ids order what has no order of its own, for they stay. */
const STATES: Readonly<Record<StateKind, string>> = {
  executions: `SELECT jsonb_strip_nulls(jsonb_build_object(
      'id', exported_id(workspace, id), 'turn', exported_id(workspace, turn), 'session', session, 'toolUseId', tool_use_id,
      'actor', actor, 'command', command, 'timeoutMs', timeout_ms, 'state', state, 'baseVersion', base_version, 'version', version,
      'outputSha256', encode(output_sha256, 'hex'), 'dispatchedAt', exported_time(dispatched_at), 'doneAt', exported_time(done_at)))
      || CASE WHEN result IS NULL THEN '{}' ELSE jsonb_build_object('result', result) END AS line, output_sha256 AS hash
    FROM execution WHERE workspace = $1 ORDER BY dispatched_at, exported_id(workspace, id)`,
  kv: `SELECT jsonb_build_object('key', key, 'sha256', encode(sha256, 'hex'), 'updatedAt', exported_time(updated_at),
      'value', translate(encode(value, 'base64'), E'\\n', '')) AS line, NULL::bytea AS hash
    FROM kv WHERE workspace = $1 ORDER BY key`,
  sessions: `SELECT jsonb_build_object('name', name, 'createdAt', exported_time(created_at)) AS line, NULL::bytea AS hash
    FROM session WHERE workspace = $1 ORDER BY name COLLATE "C"`,
  turns: `SELECT jsonb_strip_nulls(jsonb_build_object(
      'id', exported_id(workspace, id), 'name', name, 'session', session, 'specHash', spec_hash, 'phase', phase, 'reason', reason,
      'message', message, 'answer', answer, 'exitCode', exit_code, 'output', output, 'steps', steps, 'fromVersion', from_version,
      'toVersion', to_version, 'queuedAt', exported_time(queued_at), 'startedAt', exported_time(started_at), 'finishedAt', exported_time(finished_at)))
      || jsonb_build_object('spec', spec)
      || CASE WHEN usage IS NULL THEN '{}' ELSE jsonb_build_object('usage', usage) END
      || CASE WHEN files IS NULL THEN '{}' ELSE jsonb_build_object('files', files) END AS line, NULL::bytea AS hash
    FROM turn WHERE workspace = $1 ORDER BY ordinal`,
};
/** Rows that are fetched at once: a value has up to 256 KiB. */
const FETCH: Readonly<Record<StateKind, number>> = { executions: 200, kv: 8, sessions: 1_000, turns: 50 };

export function exportQueries(db: Database): ExportStore {
  const page = (scope: Scope, after: Cursor, limit: number) => [
    ...[scope.workspace, scope.version, scope.seq],
    ...[after.a, after.b, limit],
  ];
  return {
    exportTime: async (scope, signal) => {
      const [row] = await db.query<{ at: string }>(
        'export-time',
        'SELECT exported_time(at) AS at FROM event WHERE workspace = $1 AND seq = $2',
        [scope.workspace, scope.seq],
        signal,
      );
      return row?.at;
    },
    exportTree: (scope, after, limit, signal) =>
      db.query<ExportEntry>(
        'export-tree',
        `SELECT t.*, COALESCE(floor(extract(epoch FROM v.at)), 0)::float8 AS mtime FROM (
           SELECT * FROM (
             SELECT DISTINCT ON (path) path, version, kind, executable, size, sha256, target FROM file_version
             WHERE workspace = $1 AND version <= $2 AND path > $3 COLLATE "C" ORDER BY path, version DESC) latest
           WHERE kind <> 'deleted' ORDER BY path LIMIT $4) t
         LEFT JOIN version_info v ON v.workspace = $1 AND v.version = t.version ORDER BY t.path`,
        [scope.workspace, scope.version, after, limit],
        signal,
      ),
    exportBlobs: (scope, also, after, limit, signal) =>
      db.query<{ sha256: Buffer; size: bigint }>(
        'export-blobs',
        `SELECT b.sha256, b.size FROM (
           SELECT x.sha256 FROM (
             (SELECT DISTINCT v.sha256 FROM file_version v
              WHERE v.workspace = $1 AND v.version <= $3 AND v.sha256 > $5 AND NOT in_tree($1, $3, v.sha256) ORDER BY v.sha256 LIMIT $7)
             UNION
             (SELECT DISTINCT e.payload_sha256 FROM event e
              WHERE e.workspace = $1 AND e.seq <= $4 AND e.payload_sha256 > $5 AND NOT in_tree($1, $3, e.payload_sha256)
              ORDER BY e.payload_sha256 LIMIT $7)
             UNION
             (SELECT DISTINCT a FROM unnest($6::bytea[]) a WHERE a > $5 AND NOT in_tree($1, $3, a) ORDER BY a LIMIT $7)
           ) x ORDER BY x.sha256 LIMIT $7) x
         CROSS JOIN LATERAL (SELECT sha256, size FROM blob WHERE tenant = $2 AND sha256 = x.sha256 LIMIT 1) b ORDER BY b.sha256`,
        [scope.workspace, scope.tenant, scope.version, scope.seq, after, also, limit],
        signal,
      ),
    exportPlan: async (scope, section, after, limit, signal) => {
      const [row] = await db.query<{ rows: number; bytes: number; sha256: Buffer; a: bigint; b: string }>(
        `export-plan-${section}`,
        `SELECT count(*)::int AS rows, COALESCE(sum(octet_length(t)), 0)::float8 AS bytes, sha256(convert_to(COALESCE(string_agg(t, '' ORDER BY a, b COLLATE "C"), ''), 'UTF8')) AS sha256,
           max(a) AS a, (array_agg(b ORDER BY a DESC, b COLLATE "C" DESC))[1] AS b
         FROM (SELECT a, b, line::text || E'\\n' AS t FROM (${SECTIONS[section]}) rows) lines`,
        page(scope, after, limit),
        signal,
      );
      if (row === undefined || row.rows === 0) return { rows: 0, bytes: 0, sha256: Buffer.alloc(0), last: after };
      return { rows: row.rows, bytes: row.bytes, sha256: row.sha256, last: { a: row.a, b: row.b } };
    },
    exportLines: async (scope, section, after, limit, signal) => {
      const [row] = await db.query<{ text: string | null }>(
        `export-lines-${section}`,
        `SELECT string_agg(line::text || E'\\n', '' ORDER BY a, b COLLATE "C") AS text FROM (${SECTIONS[section]}) rows`,
        page(scope, after, limit),
        signal,
      );
      return Buffer.from(row?.text ?? '');
    },
    exportState: (workspace, kinds, take, signal) =>
      db.transaction(async (query) => {
        await query('export-snapshot', 'SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY', []);
        const [head] = await query<{ version: bigint; seq: bigint }>(
          'export-head',
          'SELECT head AS version, last_seq AS seq FROM workspace WHERE id = $1',
          [workspace],
        );
        for (const kind of kinds) {
          await query(
            `export-open-${kind}`,
            `DECLARE export_${kind} NO SCROLL CURSOR FOR SELECT line::text AS line, hash FROM (${STATES[kind]}) rows`,
            [workspace],
          );
          for (;;) {
            signal?.throwIfAborted();
            const rows = await query<{ line: string; hash: Buffer | null }>(
              `export-fetch-${kind}`,
              `FETCH ${FETCH[kind]} FROM export_${kind}`,
              [],
            );
            if (rows.length === 0) break;
            const text = rows.map(({ line }) => `${line}\n`).join('');
            await take(
              kind,
              text,
              rows.flatMap(({ hash }) => (hash === null ? [] : [hash])),
            );
          }
        }
        return head ?? { version: 0n, seq: 0n };
      }, signal),
  };
}
