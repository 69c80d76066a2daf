/** Reading the log. It is written by `commits.ts` alone. */
import type { Database } from './database.ts';
import type { LogEvent } from './rows.ts';
import type { WorkspaceStore } from './workspace-store.ts';

type EventRow = {
  seq: bigint;
  session: string | null;
  turn: string | null;
  execution: string | null;
  type: string;
  v: number;
  actor: string | null;
  at: Date;
  epoch: bigint;
  payload: unknown;
  large: Buffer | null;
};

export function eventQueries(db: Database): Pick<WorkspaceStore, 'readEvents'> {
  return {
    readEvents: async (workspace, filter, signal) => {
      const rows = await db.query<EventRow>(
        'events',
        `SELECT e.seq, e.session, e.turn, e.execution, e.type, e.v, e.actor, e.at, e.epoch, e.payload,
                (SELECT string_agg(c.data, ''::bytea ORDER BY c.ordinal) FROM workspace w JOIN blob_chunk c ON c.tenant = w.tenant
                   WHERE w.id = e.workspace AND c.sha256 = e.payload_sha256) AS large
         FROM event e WHERE e.workspace = $1 AND e.seq > $2 AND ($3::text IS NULL OR e.session = $3) AND ($4::uuid IS NULL OR e.turn = $4)
         ORDER BY e.seq LIMIT $5`,
        [
          workspace,
          filter.after ?? 0n,
          filter.session ?? null,
          filter.turn ?? null,
          Math.min(filter.limit ?? 1_000, 1_000),
        ],
        signal,
      );
      return rows.map(eventOf);
    },
  };
}

function eventOf(row: EventRow): LogEvent {
  return {
    seq: row.seq,
    type: row.type,
    v: row.v,
    at: row.at,
    epoch: row.epoch,
    payload: row.large === null ? row.payload : (JSON.parse(row.large.toString('utf8')) as unknown),
    ...(row.session === null ? {} : { session: row.session }),
    ...(row.turn === null ? {} : { turn: row.turn }),
    ...(row.execution === null ? {} : { execution: row.execution }),
    ...(row.actor === null ? {} : { actor: row.actor }),
  };
}
