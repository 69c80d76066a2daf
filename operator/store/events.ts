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
  tenant: string;
  payload_sha256: Buffer | null;
};

/** `readBlob`: a payload that was too large for the row. */
export function eventQueries(db: Database, readBlob: WorkspaceStore['readBlob']): Pick<WorkspaceStore, 'readEvents'> {
  return {
    readEvents: async (workspace, filter, signal) => {
      const rows = await db.query<EventRow>(
        'events',
        `SELECT e.seq, e.session, e.turn, e.execution, e.type, e.v, e.actor, e.at, e.epoch, e.payload, e.payload_sha256, w.tenant
         FROM event e JOIN workspace w ON w.id = e.workspace WHERE e.workspace = $1 AND e.seq > $2 AND ($3::text IS NULL OR e.session = $3) AND ($4::uuid IS NULL OR e.turn = $4)
           AND ($6::text[] IS NULL OR e.type = ANY($6))
         ORDER BY e.seq LIMIT $5`,
        [
          workspace,
          filter.after ?? 0n,
          filter.session ?? null,
          filter.turn ?? null,
          Math.min(filter.limit ?? 1_000, 1_000),
          filter.types ?? null,
        ],
        signal,
      );
      const events: LogEvent[] = [];
      for (const row of rows) {
        const pieces: Buffer[] = [];
        if (row.payload_sha256 !== null)
          for await (const piece of readBlob(row.tenant, row.payload_sha256, signal)) pieces.push(piece);
        const payload =
          pieces.length === 0 ? row.payload : (JSON.parse(Buffer.concat(pieces).toString('utf8')) as unknown);
        events.push(eventOf(row, payload));
      }
      return events;
    },
  };
}

function eventOf(row: EventRow, payload: unknown): LogEvent {
  return {
    seq: row.seq,
    type: row.type,
    v: row.v,
    at: row.at,
    epoch: row.epoch,
    payload,
    ...(row.session === null ? {} : { session: row.session }),
    ...(row.turn === null ? {} : { turn: row.turn }),
    ...(row.execution === null ? {} : { execution: row.execution }),
    ...(row.actor === null ? {} : { actor: row.actor }),
  };
}
