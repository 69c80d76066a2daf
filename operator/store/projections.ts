/** Rows that a status is made of, and the list of those that changed. */
import type { ControlStore, Dirty, TurnProjection, WorkspaceProjection } from './control-store.ts';
import type { Database } from './database.ts';

export function projectionQueries(
  db: Database,
): Pick<ControlStore, 'takeDirty' | 'clearDirty' | 'turnProjection' | 'workspaceProjection'> {
  return {
    // Ends first would need the phase; turns before workspaces comes close, and no row lock is held across a PATCH.
    takeDirty: (limit) =>
      db.query<Dirty>('dirty', 'SELECT kind, id, generation FROM projection_dirty ORDER BY kind LIMIT $1', [limit]),
    clearDirty: async (d) => {
      await db.query('dirty-clear', 'DELETE FROM projection_dirty WHERE kind = $1 AND id = $2 AND generation = $3', [
        d.kind,
        d.id,
        d.generation,
      ]);
    },
    turnProjection: async (id) =>
      (
        await db.query<TurnProjection>(
          'turn-projection',
          `SELECT t.*, w.namespace, w.name AS workspace_name, s.report AS sandbox_report, s.name AS sandbox_name
           FROM turn t JOIN workspace w ON w.id = t.workspace LEFT JOIN sandbox s ON s.workspace = w.id WHERE t.id = $1`,
          [id],
        )
      )[0],
    workspaceProjection: async (id) =>
      (
        await db.query<WorkspaceProjection>(
          'workspace-projection',
          `SELECT w.id, w.namespace, w.name, w.uid, w.head, w.files, w.bytes, w.seed_state, w.seed_error, w.seed_message, s.name AS sandbox,
             (SELECT t.name FROM turn t WHERE t.workspace = w.id AND t.phase = 'Running' ORDER BY t.ordinal LIMIT 1) AS active_turn
           FROM workspace w LEFT JOIN sandbox s ON s.workspace = w.id WHERE w.id = $1`,
          [id],
        )
      )[0],
  };
}
