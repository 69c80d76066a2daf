/** Sandbox rows as the turn controllers use them. The operator's side is in `sandbox-rows.ts`. */
import type { Database } from './database.ts';
import type { SandboxRow, Termination, WorkspaceRow } from './rows.ts';
import { newId } from './ids.ts';
import { WORKSPACE_COLUMNS } from './turns.ts';
import type { WorkspaceStore } from './workspace-store.ts';

export const SANDBOX_COLUMNS = `id, workspace, uid, name, operating_mode, demanded, closed, activity, pod_seq, pod_name, pod_uid, boot, attached_replica, attached_at, facts, synced_version, report`;

export function sandboxQueries(
  db: Database,
): Pick<WorkspaceStore, 'demandSandbox' | 'getSandbox' | 'attachSandbox' | 'detachSandbox' | 'terminations'> {
  return {
    demandSandbox: async (workspace, signal) => {
      const [row] = await db.query<SandboxRow>(
        'demand-sandbox',
        `INSERT INTO sandbox (id, workspace, demanded) VALUES ($1, $2, true)
         ON CONFLICT (workspace) DO UPDATE SET demanded = true, closed = false, activity = sandbox.activity + 1, last_activity_at = now()
         RETURNING ${SANDBOX_COLUMNS}`,
        [newId(), workspace],
        signal,
      );
      if (row === undefined) throw new Error('a demand returned no sandbox');
      await db.query('notify-sandbox', "SELECT pg_notify('lathe_sandbox', $1)", [workspace], signal);
      return row;
    },
    getSandbox: async (workspace, signal) =>
      (
        await db.query<SandboxRow>(
          'sandbox-of',
          `SELECT ${SANDBOX_COLUMNS} FROM sandbox WHERE workspace = $1`,
          [workspace],
          signal,
        )
      )[0],
    attachSandbox: async (attach, signal) => {
      const [sandbox] = await db.query<SandboxRow>(
        'attach-sandbox',
        `UPDATE sandbox SET boot = $3, attached_replica = $4, attached_at = now(), facts = $5, report = NULL
         WHERE id = $1 AND pod_uid = $2 RETURNING ${SANDBOX_COLUMNS}`,
        [attach.sandbox, attach.podUid, attach.boot, attach.replica, JSON.stringify(attach.facts)],
        signal,
      );
      if (sandbox === undefined) return undefined;
      const [workspace] = await db.query<WorkspaceRow>(
        'workspace',
        `SELECT ${WORKSPACE_COLUMNS} FROM workspace WHERE id = $1`,
        [sandbox.workspace],
        signal,
      );
      await db.query('notify-sandbox', "SELECT pg_notify('lathe_sandbox', $1)", [sandbox.workspace], signal);
      return workspace === undefined ? undefined : { sandbox, workspace };
    },
    detachSandbox: async (sandbox, replica, signal) => {
      await db.query(
        'detach-sandbox',
        'UPDATE sandbox SET attached_replica = NULL, attached_at = NULL WHERE id = $1 AND attached_replica = $2',
        [sandbox, replica],
        signal,
      );
    },
    terminations: (sandbox, podUid, signal) =>
      db.query<Termination>(
        'terminations',
        'SELECT container, reason, exit_code, message, at FROM sandbox_termination WHERE sandbox = $1 AND pod_uid = $2 ORDER BY at',
        [sandbox, podUid],
        signal,
      ),
  };
}
