/** Dispatch and commit: each one call to the server, fenced there (migrations/0001). */
import type { Database } from './database.ts';
import type { Change, ExecutionRow, NewEvent, TurnUpdate } from './rows.ts';
import type { Commit, WorkspaceStore } from './workspace-store.ts';

/** A larger payload is a blob, so that the log stays quick to read. */
export const MAX_PAYLOAD_BYTES = 8_192;
const EXECUTION = `id, workspace, turn, session, tool_use_id, actor, command, timeout_ms, state, sandbox, boot, base_version, version, result`;
type PutBlobs = WorkspaceStore['putBlobs'];

export function commitQueries(
  db: Database,
  putBlobs: PutBlobs,
): Pick<WorkspaceStore, 'dispatch' | 'commit' | 'answered' | 'getExecution' | 'openExecutions'> {
  return {
    dispatch: async (lease, x, events, signal) => {
      const [row] = await db.query<{ head: bigint; existing: string | null }>(
        'dispatch',
        'SELECT head, existing FROM dispatch_execution($1, $2, $3, $4, $5, $6)',
        [
          lease.workspace,
          lease.incarnation,
          lease.epoch,
          lease.token,
          json(x),
          json(await eventsOf(db, putBlobs, lease.workspace, events)),
        ],
        signal,
      );
      if (row === undefined) throw new Error('dispatch_execution returned nothing');
      return { head: row.head, ...(row.existing === null ? {} : { existing: row.existing }) };
    },
    commit: async (lease, commit, signal) => {
      const [row] = await db.query<{ head: bigint; first_seq: bigint; last_seq: bigint; conflicts: string[] }>(
        'commit',
        'SELECT * FROM commit_changes($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)',
        [
          ...[lease.workspace, lease.incarnation, lease.epoch, lease.token],
          commit.execution === undefined ? null : json(executionOf(commit.execution)),
          json(commit.changes.map(changeOf)),
          json(await eventsOf(db, putBlobs, lease.workspace, commit.events)),
          commit.turn === undefined ? null : json(turnOf(commit.turn)),
          commit.usage === undefined ? null : json(commit.usage),
          json(optionsOf(commit)),
        ],
        signal,
      );
      if (row === undefined) throw new Error('commit_changes returned nothing');
      // A hint, outside the transaction that just ended: inside it would take a lock over the whole instance.
      if (commit.turn?.phase !== undefined) {
        void db.query('notify-projection', "SELECT pg_notify('lathe_projection', '')", []).catch(() => undefined);
      }
      return { head: row.head, firstSeq: row.first_seq, lastSeq: row.last_seq, conflicts: row.conflicts };
    },
    answered: async ({ id, tenant }, key, signal) => {
      const [row] = await db.query<{ request_sha256: Buffer; response: unknown }>(
        'answered',
        `SELECT request_sha256, response FROM idempotency_key
         WHERE tenant = $1 AND key = $2 AND created_at >= now() - interval '24 hours'`,
        [tenant, `${id} ${key}`],
        signal,
      );
      return row === undefined ? undefined : { requestSha256: row.request_sha256, response: row.response };
    },
    getExecution: async (id, signal) =>
      (await db.query<ExecutionRow>('execution', `SELECT ${EXECUTION} FROM execution WHERE id = $1`, [id], signal))[0],
    openExecutions: (workspace, signal) =>
      db.query<ExecutionRow>(
        'executions-open',
        `SELECT ${EXECUTION} FROM execution WHERE workspace = $1 AND state = 'dispatched' ORDER BY dispatched_at`,
        [workspace],
        signal,
      ),
  };
}

async function eventsOf(
  db: Database,
  putBlobs: PutBlobs,
  workspace: string,
  events: readonly NewEvent[],
): Promise<readonly object[]> {
  return await Promise.all(
    events.map(async (event) => {
      const bytes = Buffer.from(JSON.stringify(event.payload));
      if (bytes.length <= MAX_PAYLOAD_BYTES) return event;
      const [row] = await db.query<{ tenant: string }>('tenant-of', 'SELECT tenant FROM workspace WHERE id = $1', [
        workspace,
      ]);
      if (row === undefined) return event;
      const [sha256] = await putBlobs(row.tenant, [bytes]);
      const { payload: _large, ...rest } = event;
      return { ...rest, payloadSha256: sha256?.toString('hex') };
    }),
  );
}

function executionOf(x: NonNullable<Commit['execution']>): object {
  const { outputSha256, ...rest } = x;
  return outputSha256 === undefined ? rest : { ...rest, outputSha256: outputSha256.toString('hex') };
}

function optionsOf({ origin, atomic, idempotency, events: [first] }: Commit): object {
  return {
    actor: first?.actor,
    turn: first?.turn,
    session: first?.session,
    origin,
    atomic,
    ...(idempotency === undefined
      ? {}
      : { idempotency: { ...idempotency, requestSha256: idempotency.requestSha256.toString('hex') } }),
  };
}

function changeOf(change: Change): object {
  const base = change.base.toString();
  if (change.op === 'delete') return { path: change.path, op: change.op, base };
  const { sha256, ...rest } = change;
  return { ...rest, base, ...(sha256 === undefined ? {} : { sha256: sha256.toString('hex') }) };
}

function turnOf(turn: TurnUpdate): object {
  return {
    ...turn,
    ...(turn.fromVersion === undefined ? {} : { fromVersion: turn.fromVersion.toString() }),
    ...(turn.toVersion === undefined ? {} : { toVersion: turn.toVersion.toString() }),
  };
}

function json(value: unknown): string {
  // A NUL has no place in jsonb; what a command printed may have one.
  return JSON.stringify(value).replaceAll('\\u0000', '\\ufffd');
}
