/** Sandbox rows as the operator uses them: pods in, demands out. */
import type { ControlStore, SandboxActivity } from './control-store.ts';
import type { Database } from './database.ts';
import { newId } from './ids.ts';
import type { SandboxRow } from './rows.ts';
import { SANDBOX_COLUMNS } from './sandboxes.ts';

export function sandboxRowQueries(
  db: Database,
): Pick<
  ControlStore,
  | 'sandboxesToLookAt'
  | 'sandboxOf'
  | 'ensureSandbox'
  | 'setPod'
  | 'revokePod'
  | 'closeSandbox'
  | 'recordTermination'
  | 'reportSandbox'
> {
  return {
    sandboxesToLookAt: () =>
      db.query(
        'sandboxes-to-look-at',
        `SELECT s.workspace, w.namespace, w.name FROM sandbox s JOIN workspace w ON w.id = s.workspace
         WHERE w.deleted_at IS NULL AND (s.demanded OR s.pod_uid IS NOT NULL)`,
        [],
      ),
    sandboxOf: async (namespace, name) =>
      (
        await db.query<SandboxActivity>(
          'sandbox-activity',
          `SELECT s.*, (extract(epoch FROM now() - s.last_activity_at) * 1000)::float8 AS idle_ms,
             (extract(epoch FROM now() - s.pod_created_at) * 1000)::float8 AS age_ms, w.deleted_at IS NOT NULL AS deleted,
             (SELECT count(*)::int FROM execution e WHERE e.workspace = w.id AND e.state = 'dispatched') AS open_executions,
             (SELECT t.name FROM turn t WHERE t.workspace = w.id AND t.phase = 'Running' LIMIT 1) AS running_turn
           FROM sandbox s JOIN workspace w ON w.id = s.workspace WHERE w.namespace = $1 AND w.name = $2 AND w.deleted_at IS NULL`,
          [namespace, name],
        )
      )[0],
    ensureSandbox: async (workspace, o) => {
      const [row] = await db.query<SandboxRow>(
        'sandbox-ensure',
        `INSERT INTO sandbox (id, workspace, uid, name, operating_mode, demanded) VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (workspace) DO UPDATE SET uid = excluded.uid, name = excluded.name, operating_mode = excluded.operating_mode
         RETURNING ${SANDBOX_COLUMNS}`,
        [newId(), workspace, o.uid, o.name, o.operatingMode, o.demand],
      );
      if (row === undefined) throw new Error('a sandbox row was neither made nor found');
      return row;
    },
    setPod: async (sandbox, pod) => {
      await db.query(
        'sandbox-pod',
        `UPDATE sandbox SET pod_seq = $2, pod_name = $3, pod_uid = $4, pod_created_at = now(), boot = NULL, attached_at = NULL, attached_replica = NULL,
           last_activity_at = now() WHERE id = $1 AND pod_uid IS DISTINCT FROM $4`,
        [sandbox, pod.seq, pod.name, pod.uid],
      );
    },
    revokePod: async (sandbox, podUid) => {
      await db.query(
        'sandbox-revoke',
        'UPDATE sandbox SET pod_name = NULL, pod_uid = NULL, pod_created_at = NULL, boot = NULL, attached_at = NULL, attached_replica = NULL WHERE id = $1 AND pod_uid = $2',
        [sandbox, podUid],
      );
      await db.query('notify-turn', "SELECT pg_notify('lathe_turn', 'sandbox')", []);
    },
    closeSandbox: async (sandbox, seen) => {
      const rows = await db.query(
        'sandbox-close',
        'UPDATE sandbox SET closed = true, demanded = false WHERE id = $1 AND activity = $2 RETURNING id',
        [sandbox, seen],
      );
      return rows.length > 0 ? 'done' : 'stale';
    },
    recordTermination: async (t) => {
      await db.query(
        'termination',
        `INSERT INTO sandbox_termination (sandbox, pod_uid, container, restart_count, reason, exit_code, message)
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING`,
        [t.sandbox, t.podUid, t.container, t.restartCount, t.reason, t.exitCode ?? null, t.message ?? null],
      );
    },
    reportSandbox: async (sandbox, report) => {
      const changed = await db.query<{ workspace: string }>(
        'sandbox-report',
        'UPDATE sandbox SET report = $2 WHERE id = $1 AND report IS DISTINCT FROM $2::jsonb RETURNING workspace',
        [sandbox, report === null ? null : JSON.stringify(report)],
      );
      for (const { workspace } of changed) {
        await db.query(
          'turns-dirty',
          "SELECT mark_dirty('turn', id) FROM turn WHERE workspace = $1 AND phase = 'Running'",
          [workspace],
        );
      }
    },
  };
}
