/** Small values beside the files of a workspace: no versions, the last write counts. */
import { createHash } from 'node:crypto';
import { KV_LIMITS } from '../../proto/live/types.ts';
import type { ApiStore, ValueRow } from './api-store.ts';
import type { Database } from './database.ts';
import { endOfPrefix } from './prefix.ts';

/** With the workspace's hash, the advisory lock under which its values are written. */
const LOCK = 4_173_003;

export function valueQueries(db: Database): Pick<ApiStore, 'listValues' | 'getValue' | 'writeValue'> {
  return {
    listValues: (workspace, { prefix, after, limit }, signal) =>
      db.query<ValueRow>(
        'values-page',
        `SELECT key, length(value) AS size, sha256, updated_at FROM kv
         WHERE workspace = $1 AND key > $2 COLLATE "C" AND key >= $3 COLLATE "C" AND ($4::text IS NULL OR key < $4 COLLATE "C") ORDER BY key LIMIT $5`,
        [workspace, after, prefix, endOfPrefix(prefix) ?? null, limit],
        signal,
      ),
    getValue: async (workspace, key, signal) => {
      const [row] = await db.query<{ value: Buffer }>(
        'value',
        'SELECT value FROM kv WHERE workspace = $1 AND key = $2',
        [workspace, key],
        signal,
      );
      return row?.value;
    },
    writeValue: ({ id, tenant }, key, value, { ifMatch, mustExist, dryRun, idempotency }, signal) =>
      db.transaction(async (query) => {
        await query('values-lock', 'SELECT pg_advisory_xact_lock($1, hashtext($2))', [LOCK, id]);
        if (idempotency !== undefined && dryRun !== true) {
          const [before] = await query<{ same: boolean }>(
            'value-answered',
            `SELECT request_sha256 = $3 AS same FROM idempotency_key
             WHERE tenant = $1 AND key = $2 AND created_at >= now() - interval '24 hours'`,
            [tenant, `${id} ${idempotency.key}`, idempotency.requestSha256],
          );
          if (before !== undefined) return before.same ? 'done' : 'otherRequest';
        }
        const [old] = await query<{ sha256: Buffer; size: number }>(
          'value-before',
          'SELECT sha256, length(value) AS size FROM kv WHERE workspace = $1 AND key = $2',
          [id, key],
        );
        if (ifMatch !== undefined && (ifMatch.length === 0 ? old !== undefined : old?.sha256.equals(ifMatch) !== true))
          return 'changed';
        if (old === undefined && mustExist === true) return 'absent';
        if (value !== undefined) {
          const [all] = await query<{ count: number; bytes: bigint }>(
            'values-size',
            'SELECT count(*)::int AS count, COALESCE(sum(length(value)), 0)::bigint AS bytes FROM kv WHERE workspace = $1',
            [id],
          );
          const { count, bytes } = all ?? { count: 0, bytes: 0n };
          if (old === undefined && count >= KV_LIMITS.keys) return 'tooMany';
          if (Number(bytes) - (old?.size ?? 0) + value.length > KV_LIMITS.bytes) return 'full';
        }
        if (dryRun === true) return 'done';
        if (value === undefined)
          await query('value-delete', 'DELETE FROM kv WHERE workspace = $1 AND key = $2', [id, key]);
        else
          await query(
            'value-put',
            `INSERT INTO kv (workspace, key, value, sha256) VALUES ($1, $2, $3, $4)
             ON CONFLICT (workspace, key) DO UPDATE SET value = excluded.value, sha256 = excluded.sha256, updated_at = now()`,
            [id, key, value, createHash('sha256').update(value).digest()],
          );
        if (idempotency !== undefined)
          await query(
            'value-answer',
            `INSERT INTO idempotency_key (tenant, key, request_sha256, response) VALUES ($1, $2, $3, '{}')
             ON CONFLICT (tenant, key) DO UPDATE SET request_sha256 = excluded.request_sha256, response = excluded.response, created_at = now()`,
            [tenant, `${id} ${idempotency.key}`, idempotency.requestSha256],
          );
        return 'done';
      }, signal),
  };
}
