/** What people declared, mirrored into rows. */
import type { ControlStore, RecordRow } from './control-store.ts';
import type { Database } from './database.ts';
import { newId } from './ids.ts';
import type { SeedState } from './rows.ts';
import type { WorkspaceSpec } from '../../crds/types.ts';

/** Of one statement. */
const PURGE_ROWS = 10_000;
const COLLECT_ROWS = 1_000;

export function specQueries(
  db: Database,
): Pick<
  ControlStore,
  | 'upsertTenant'
  | 'upsertClass'
  | 'upsertWorkspace'
  | 'putSeed'
  | 'markWorkspaceDeleted'
  | 'findWorkspaceByUid'
  | 'findRecords'
  | 'deletedRecords'
  | 'purgeRecord'
  | 'collectBlobs'
  | 'putQuota'
  | 'storedBytes'
  | 'upsertTurn'
  | 'cancelTurn'
> {
  return {
    upsertTenant: async ({ namespace, namespaceUid }) => {
      const [row] = await db.query<{ id: string }>(
        'tenant',
        `INSERT INTO tenant (id, namespace, namespace_uid) VALUES ($1, $2, $3)
         ON CONFLICT (namespace_uid) DO UPDATE SET namespace = excluded.namespace RETURNING id`,
        [newId(), namespace, namespaceUid],
      );
      if (row === undefined) throw new Error('a tenant was neither made nor found');
      return row.id;
    },
    upsertClass: async (c) => {
      await db.query(
        'class-put',
        `INSERT INTO class (name, uid, generation, spec) VALUES ($1, $2, $3, $4)
         ON CONFLICT (name) DO UPDATE SET uid = excluded.uid, generation = excluded.generation, spec = excluded.spec`,
        [c.name, c.uid, c.generation, JSON.stringify(c.spec)],
      );
    },
    upsertWorkspace: (w) =>
      db.transaction(async (query) => {
        await query(
          'workspace-replace',
          'UPDATE workspace SET deleted_at = now() WHERE namespace = $1 AND name = $2 AND uid <> $3 AND deleted_at IS NULL',
          [w.namespace, w.name, w.uid],
        );
        if (w.adopt !== undefined)
          // Only what is deleted, and of a namespace of this name: nobody gets at another namespace's files. Its tenant
          // stays, by which its contents are stored.
          await query(
            'workspace-adopt',
            `UPDATE workspace SET uid = $1, name = $2, deleted_at = NULL
             WHERE id = $3 AND namespace = $4 AND deleted_at IS NOT NULL AND NOT EXISTS (SELECT 1 FROM workspace WHERE uid = $1)`,
            [w.uid, w.name, w.adopt, w.namespace],
          );
        const [row] = await query<{ id: string; seed_state: SeedState }>(
          'workspace-put',
          `INSERT INTO workspace (id, tenant, namespace, name, uid, generation, class, spec, effective, seed_state)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
           ON CONFLICT (uid) DO UPDATE SET generation = excluded.generation, class = excluded.class, spec = excluded.spec, effective = excluded.effective
           RETURNING id, seed_state`,
          [
            newId(),
            w.tenant,
            w.namespace,
            w.name,
            w.uid,
            w.generation,
            w.class,
            JSON.stringify(w.spec),
            JSON.stringify(w.effective),
            w.hasSeed ? 'Pending' : 'None',
          ],
        );
        if (row === undefined) throw new Error('a workspace was neither made nor found');
        await query('workspace-dirty', "SELECT mark_dirty('workspace', $1)", [row.id]);
        return row;
      }),
    putSeed: (workspace, entries) =>
      db.transaction(async (query) => {
        const [row] = await query<{ id: string }>(
          'seed-awaited',
          "SELECT id FROM workspace WHERE id = $1 AND seed_state = 'Pending' FOR UPDATE",
          [workspace],
        );
        if (row === undefined) return;
        await query(
          'seed-put',
          `INSERT INTO seed (workspace, path, executable, content) SELECT $1, * FROM unnest($2::text[], $3::boolean[], $4::bytea[])
           ON CONFLICT (workspace, path) DO UPDATE SET executable = excluded.executable, content = excluded.content`,
          [workspace, entries.map((e) => e.path), entries.map((e) => e.executable), entries.map((e) => e.content)],
        );
        await query('seed-ready', "UPDATE workspace SET seed_state = 'Ready' WHERE id = $1", [workspace]);
        await query('notify-turn', "SELECT pg_notify('lathe_turn', '')", []);
      }),
    markWorkspaceDeleted: async (uid) => {
      await db.query(
        'workspace-deleted',
        'UPDATE workspace SET deleted_at = now() WHERE uid = $1 AND deleted_at IS NULL',
        [uid],
      );
      await db.query('notify-turn', "SELECT pg_notify('lathe_turn', '')", []);
    },
    findWorkspaceByUid: async (uid) =>
      (
        await db.query<{ id: string; name: string; namespace: string }>(
          'workspace-by-uid',
          'SELECT id, name, namespace FROM workspace WHERE uid = $1',
          [uid],
        )
      )[0],
    findRecords: ({ uid, namespace, name, adopt }) =>
      db.query<RecordRow>(
        'records',
        `SELECT w.id, w.uid, w.name, t.namespace_uid, w.deleted_at, w.files, w.bytes FROM workspace w JOIN tenant t ON t.id = w.tenant
         WHERE w.namespace = $2 AND (w.uid = $1 OR w.name = $3 OR w.id::text = $4) ORDER BY w.created_at DESC LIMIT 100`,
        [uid, namespace, name, adopt ?? ''],
      ),
    deletedRecords: async () =>
      (
        await db.query<{ id: string; spec: WorkspaceSpec; deleted_ms: number; orphan: boolean }>(
          'records-deleted',
          `SELECT w.id, w.spec, extract(epoch FROM now() - w.deleted_at)::float8 * 1000 AS deleted_ms,
             EXISTS (SELECT 1 FROM tenant t JOIN tenant newer ON newer.namespace = t.namespace AND newer.created_at > t.created_at WHERE t.id = w.tenant) AS orphan
           FROM workspace w WHERE w.deleted_at IS NOT NULL ORDER BY w.deleted_at LIMIT 1000`,
          [],
        )
      ).map(({ id, spec, deleted_ms, orphan }) => ({ id, spec, deletedMs: deleted_ms, orphan })),
    purgeRecord: async (id) => {
      const [row] = await db.query<{ gone: boolean }>('record-purge', 'SELECT purge_workspace($1, $2) AS gone', [
        id,
        PURGE_ROWS,
      ]);
      return row?.gone === true;
    },
    collectBlobs: async () => {
      const [row] = await db.query<{ gone: number }>('blobs-collect', 'SELECT collect_blobs($1) AS gone', [
        COLLECT_ROWS,
      ]);
      return row?.gone ?? 0;
    },
    putQuota: async (tenant, storedBytes) => {
      if (storedBytes === undefined) await db.query('quota-drop', 'DELETE FROM quota WHERE tenant = $1', [tenant]);
      else
        await db.query(
          'quota-put',
          `INSERT INTO quota AS q (tenant, stored_bytes) VALUES ($1, $2)
           ON CONFLICT (tenant) DO UPDATE SET stored_bytes = excluded.stored_bytes WHERE q.stored_bytes <> excluded.stored_bytes`,
          [tenant, storedBytes],
        );
    },
    storedBytes: async (tenant) => {
      const [row] = await db.query<{ bytes: bigint }>(
        'stored-bytes',
        'SELECT COALESCE(sum(bytes), 0)::bigint AS bytes FROM workspace WHERE tenant = $1 AND deleted_at IS NULL',
        [tenant],
      );
      return row?.bytes ?? 0n;
    },
    upsertTurn: async (t) => {
      const [row] = await db.query<{ id: string; created: boolean }>(
        'turn-put',
        `WITH made AS (
           INSERT INTO turn (id, workspace, name, uid, session, spec, spec_hash, phase) VALUES ($1, $2, $3, $4, $5, $6, $7, 'Queued')
           ON CONFLICT (uid) DO NOTHING RETURNING id
         ), session AS (
           INSERT INTO session (workspace, name) SELECT $2, $5 FROM made ON CONFLICT DO NOTHING
         )
         SELECT id, true AS created FROM made UNION ALL SELECT id, false FROM turn WHERE uid = $4`,
        [newId(), t.workspace, t.name, t.uid, t.spec.session ?? 'main', JSON.stringify(t.spec), t.specHash],
      );
      if (row === undefined) throw new Error('a turn was neither made nor found');
      if (row.created) {
        await db.query('turn-dirty', "SELECT mark_dirty('turn', $1)", [row.id]);
        await db.query('notify-turn', "SELECT pg_notify('lathe_turn', '')", []);
      }
      return row;
    },
    cancelTurn: async (uid) => {
      await db.query(
        'turn-cancel',
        `UPDATE turn SET cancel_requested = true,
           phase = CASE phase WHEN 'Queued' THEN 'Cancelled' ELSE phase END,
           reason = CASE phase WHEN 'Queued' THEN 'TurnDeleted' ELSE reason END,
           finished_at = CASE phase WHEN 'Queued' THEN now() ELSE finished_at END
         WHERE uid = $1 AND phase IN ('Queued', 'Running')`,
        [uid],
      );
      await db.query('notify-turn', "SELECT pg_notify('lathe_turn', '')", []);
    },
  };
}
