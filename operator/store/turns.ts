/** Turns, seeds and the rows that say how they may run. */
import type { Database } from './database.ts';
import { TTL_MS } from './ownership.ts';
import type { ClassRow, Lease, TurnRow, WorkspaceRow } from './rows.ts';
import type { SeedEntry, WorkspaceStore } from './workspace-store.ts';

const TTL = `${TTL_MS} milliseconds`;
const turnColumns = (t: string) =>
  `id, workspace, name, uid, session, spec, phase, reason, message, answer, exit_code, output, steps, usage, files, from_version, to_version, cancel_requested, queued_at, started_at, finished_at`
    .split(', ')
    .map((column) => `${t}.${column}`)
    .join(', ');
export const WORKSPACE_COLUMNS = `id, tenant, namespace, name, uid, generation, class, spec, effective, head, last_seq, files, bytes, seed_state, seed_error, seed_attempts`;
/** No live replica but this one has the workspace; `l` and `r` are its lease and that lease's replica. */
const FREE = `(l.workspace IS NULL OR l.released OR r.heartbeat_at IS NULL OR r.heartbeat_at < now() - '${TTL}'::interval)`;
type Acquired = { incarnation: bigint | null; epoch: bigint; token: string };

export function turnQueries(
  db: Database,
): Pick<
  WorkspaceStore,
  | 'claimTurn'
  | 'claimSeed'
  | 'reportSeed'
  | 'finishSeed'
  | 'getTurn'
  | 'findTurn'
  | 'getWorkspace'
  | 'findWorkspace'
  | 'getClass'
  | 'cancelRequests'
> {
  return {
    claimTurn: (replica, running, signal) =>
      db.transaction(async (query) => {
        // Only the first unfinished turn of a workspace. A running one when its owner is gone, or when it is ours by a
        // lease that came otherwise (its broker attached here first, or a heartbeat was late) and nobody here runs it.
        const [turn] = await query<TurnRow>(
          'claim-turn',
          `SELECT ${turnColumns('t')} FROM turn t JOIN workspace w ON w.id = t.workspace
             LEFT JOIN lease l ON l.workspace = t.workspace LEFT JOIN replica r ON r.id = l.replica
           WHERE t.phase IN ('Queued', 'Running') AND w.deleted_at IS NULL AND w.seed_state IN ('None', 'Done')
             AND NOT EXISTS (SELECT 1 FROM turn e WHERE e.workspace = t.workspace AND e.ordinal < t.ordinal AND e.phase IN ('Queued', 'Running'))
             AND (${FREE} OR l.replica = $1) AND t.id <> ALL($2::uuid[])
           ORDER BY t.ordinal LIMIT 1 FOR UPDATE OF t SKIP LOCKED`,
          [replica, running],
        );
        if (turn === undefined) return undefined;
        const lease = await acquire(query, turn.workspace, replica);
        const [workspace] = await query<WorkspaceRow>(
          'workspace',
          `SELECT ${WORKSPACE_COLUMNS} FROM workspace WHERE id = $1`,
          [turn.workspace],
        );
        if (lease === undefined || workspace === undefined) return undefined;
        await query(
          'turn-running',
          "UPDATE turn SET phase = 'Running', started_at = COALESCE(started_at, now()), message = NULL, reason = NULL WHERE id = $1",
          [turn.id],
        );
        await query('turn-dirty', "SELECT mark_dirty('turn', $1)", [turn.id]);
        return { turn, workspace, lease };
      }, signal),
    claimSeed: (replica, running, signal) =>
      db.transaction(async (query) => {
        const [workspace] = await query<WorkspaceRow>(
          'claim-seed',
          `SELECT ${WORKSPACE_COLUMNS.split(', ')
            .map((c) => `w.${c}`)
            .join(', ')} FROM workspace w
             LEFT JOIN lease l ON l.workspace = w.id LEFT JOIN replica r ON r.id = l.replica
           WHERE w.seed_state = 'Ready' AND w.deleted_at IS NULL AND (w.seed_retry_at IS NULL OR w.seed_retry_at <= now())
             AND (${FREE} OR l.replica = $1) AND w.id <> ALL($2::uuid[])
           ORDER BY w.seed_retry_at NULLS FIRST LIMIT 1 FOR UPDATE OF w SKIP LOCKED`,
          [replica, running],
        );
        if (workspace === undefined) return undefined;
        const lease = await acquire(query, workspace.id, replica);
        if (lease === undefined) return undefined;
        const entries = await query<SeedEntry>(
          'seed',
          'SELECT path, executable, content FROM seed WHERE workspace = $1 ORDER BY path',
          [workspace.id],
        );
        return { workspace, lease, entries };
      }, signal),
    reportSeed: (lease, { message, retryAfterMs }, signal) =>
      db.transaction(async (query) => {
        await fence(query, lease);
        await query(
          'seed-report',
          `UPDATE workspace SET seed_message = $2,
             seed_attempts = seed_attempts + CASE WHEN $3::float8 IS NULL THEN 0 ELSE 1 END,
             seed_retry_at = now() + $3::float8 * interval '1 millisecond'
           WHERE id = $1 AND seed_state = 'Ready'`,
          [lease.workspace, message, retryAfterMs ?? null],
        );
        await query('workspace-dirty', "SELECT mark_dirty('workspace', $1)", [lease.workspace]);
      }, signal),
    finishSeed: (lease, error, signal) =>
      db.transaction(async (query) => {
        await fence(query, lease);
        await query(
          'seed-state',
          'UPDATE workspace SET seed_state = $2, seed_error = $3, seed_message = NULL WHERE id = $1',
          [lease.workspace, error === undefined ? 'Done' : 'Failed', error ?? null],
        );
        await query('seed-drop', 'DELETE FROM seed WHERE workspace = $1', [lease.workspace]);
        await query('workspace-dirty', "SELECT mark_dirty('workspace', $1)", [lease.workspace]);
        await query('notify', "SELECT pg_notify('lathe_projection', ''), pg_notify('lathe_turn', '')", []);
      }, signal),
    getTurn: async (id, signal) =>
      (await db.query<TurnRow>('turn', `SELECT ${turnColumns('t')} FROM turn t WHERE id = $1`, [id], signal))[0],
    findTurn: async (workspace, name, signal) =>
      (
        await db.query<TurnRow>(
          'turn-by-name',
          `SELECT ${turnColumns('t')} FROM turn t WHERE workspace = $1 AND name = $2 ORDER BY ordinal DESC LIMIT 1`,
          [workspace, name],
          signal,
        )
      )[0],
    getWorkspace: async (id, signal) =>
      (
        await db.query<WorkspaceRow>(
          'workspace',
          `SELECT ${WORKSPACE_COLUMNS} FROM workspace WHERE id = $1`,
          [id],
          signal,
        )
      )[0],
    findWorkspace: async (namespace, name, signal) =>
      (
        await db.query<WorkspaceRow>(
          'workspace-by-name',
          `SELECT ${WORKSPACE_COLUMNS} FROM workspace WHERE namespace = $1 AND name = $2 AND deleted_at IS NULL`,
          [namespace, name],
          signal,
        )
      )[0],
    getClass: async (name, signal) =>
      (await db.query<ClassRow>('class', 'SELECT name, uid, spec FROM class WHERE name = $1', [name], signal))[0],
    cancelRequests: async (turns, signal) => {
      if (turns.length === 0) return [];
      const rows = await db.query<{ id: string }>(
        'cancel-requests',
        "SELECT t.id FROM turn t JOIN workspace w ON w.id = t.workspace WHERE t.id = ANY($1::uuid[]) AND (t.cancel_requested OR w.deleted_at IS NOT NULL) AND t.phase = 'Running'",
        [turns],
        signal,
      );
      return rows.map((row) => row.id);
    },
  };
}

async function fence(query: Database['query'], lease: Lease): Promise<void> {
  await query('fence', 'SELECT fence($1, $2, $3, $4)', [lease.workspace, lease.incarnation, lease.epoch, lease.token]);
}

async function acquire(query: Database['query'], workspace: string, replica: string): Promise<Lease | undefined> {
  const [row] = await query<Acquired>('acquire', 'SELECT * FROM acquire_lease($1, $2, $3::interval)', [
    workspace,
    replica,
    TTL,
  ]);
  if (row === undefined || row.incarnation === null) return undefined;
  return { workspace, incarnation: row.incarnation, epoch: row.epoch, token: row.token };
}
