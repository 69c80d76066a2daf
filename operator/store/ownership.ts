/** Who may write to a workspace (CONTRACTS 3). */
import type { Database } from './database.ts';
import type { WorkspaceStore } from './workspace-store.ts';

/** A replica that was not heard of for this long is gone. Owners stop themselves 2 s earlier. */
export const TTL_MS = 10_000;
const TTL = `${TTL_MS} milliseconds`;
type AcquiredRow = { incarnation: bigint | null; epoch: bigint; token: string; owner: string; address: string };

export function ownershipQueries(
  db: Database,
): Pick<WorkspaceStore, 'heartbeat' | 'acquire' | 'release' | 'releaseAll'> {
  return {
    heartbeat: async ({ replica, address }, signal) => {
      const [row] = await db.query<{ incarnation: bigint }>(
        'heartbeat',
        `INSERT INTO replica (id, incarnation, address, heartbeat_at) SELECT $1, incarnation, $2, now() FROM installation
         ON CONFLICT (id) DO UPDATE SET heartbeat_at = now(), incarnation = excluded.incarnation, address = excluded.address
         RETURNING incarnation`,
        [replica, address],
        signal,
      );
      if (row === undefined) throw new Error('the installation row is missing; run lathe migrate');
      return row;
    },
    acquire: async (workspace, replica, signal) => {
      const [row] = await db.query<AcquiredRow>(
        'acquire',
        'SELECT * FROM acquire_lease($1, $2, $3::interval)',
        [workspace, replica, TTL],
        signal,
      );
      if (row === undefined || row.incarnation === null)
        return { owner: { replica: row?.owner ?? '', address: row?.address ?? '' } };
      return { lease: { workspace, incarnation: row.incarnation, epoch: row.epoch, token: row.token } };
    },
    release: async (lease, signal) => {
      await db.query(
        'release',
        'UPDATE lease SET released = true WHERE workspace = $1 AND incarnation = $2 AND epoch = $3 AND token = $4',
        [lease.workspace, lease.incarnation, lease.epoch, lease.token],
        signal,
      );
    },
    releaseAll: async (replica, signal) => {
      await db.query(
        'release-all',
        'UPDATE lease SET released = true WHERE replica = $1 AND NOT released',
        [replica],
        signal,
      );
      await db.query('heartbeat-end', 'DELETE FROM replica WHERE id = $1', [replica], signal);
      await db.query('release-notify', "SELECT pg_notify('lathe_turn', '')", [], signal);
    },
  };
}
