/** The store on Postgres: the query families, each in a file of its own, on one work and one bulk pool. */
import { apiQueries, type ApiStore } from './api-store.ts';
import { blobQueries } from './blobs.ts';
import { commitQueries } from './commits.ts';
import { openDatabase, type Database } from './database.ts';
import { eventQueries } from './events.ts';
import { exportQueries, type ExportStore } from './export-store.ts';
import { fileQueries } from './files.ts';
import { importQueries, type ImportStore } from './import-store.ts';
import { ownershipQueries } from './ownership.ts';
import { sandboxQueries } from './sandboxes.ts';
import { turnQueries } from './turns.ts';
import type { WorkspaceStore } from './workspace-store.ts';

export type PostgresStore = WorkspaceStore &
  ApiStore &
  ExportStore &
  ImportStore &
  Readonly<{ database: Database; close(): Promise<void> }>;

/** Connects at first use. `close` may be called twice. */
export function openPostgresStore(url: string, name: string): PostgresStore {
  // CONTRACTS 5: a heartbeat never waits for work, work never for bulk.
  const heartbeat = openDatabase(url, { size: 1, name: `${name} heartbeat` });
  const work = openDatabase(url, { size: 15, name });
  // A content counts only once a commit names it, and that commit flushes the log up to itself, this before it.
  const bulk = openDatabase(url, { size: 4, name: `${name} bulk`, settings: ['synchronous_commit=off'] });
  const blobs = blobQueries(bulk);
  let closed: Promise<unknown> | undefined;
  return {
    database: work,
    ...ownershipQueries(work),
    heartbeat: ownershipQueries(heartbeat).heartbeat,
    ...commitQueries(work, blobs.putBlobs),
    ...eventQueries(work, blobs.readBlob),
    ...fileQueries(work),
    ...blobs,
    ...turnQueries(work),
    ...sandboxQueries(work),
    ...apiQueries(work),
    ...exportQueries(work),
    ...importQueries(work),
    close: async () => void (await (closed ??= Promise.all([heartbeat.close(), work.close(), bulk.close()]))),
  };
}
