/** Brings the schema to what this program needs. Forward only; two that start at once are settled by a lock. */
import { readdir, readFile } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { Client } from 'pg';
import { PermanentError, TransientError } from '../errors.ts';
import type { Database } from './database.ts';

/** Versions of the schema that this program can work on, both included. */
export const SCHEMA_RANGE = { from: 7, to: 7 } as const;

const LOCK = 4_173_002;
type Migration = Readonly<{ version: number; name: string; sql: string }>;

/**
 * Waits up to `waitMs` for the database to answer, then applies what is missing, each file in a transaction.
 * @throws TransientError StoreUnavailable; PermanentError when the schema is newer than this program knows
 */
export async function migrate(
  url: string,
  options: Readonly<{ say: (line: string) => void; waitMs?: number; folder?: URL }>,
  signal: AbortSignal,
): Promise<void> {
  const client = await connect(url, options.waitMs ?? 120_000, options.say, signal);
  try {
    await client.query('SELECT pg_advisory_lock($1)', [LOCK]);
    await client.query("SET lock_timeout = '2s'");
    await client.query(
      'CREATE TABLE IF NOT EXISTS schema_migration (version int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())',
    );
    const { rows } = await client.query<{ version: number }>('SELECT version FROM schema_migration');
    const applied = new Set(rows.map((row) => row.version));
    const newest = Math.max(0, ...applied);
    if (newest > SCHEMA_RANGE.to) {
      throw new PermanentError(
        'SchemaTooNew',
        `the database has schema ${newest}, this program knows ${SCHEMA_RANGE.to}; run a newer release`,
      );
    }
    for (const migration of await migrations(options.folder ?? new URL('migrations/', import.meta.url))) {
      if (applied.has(migration.version)) continue;
      await client.query('BEGIN');
      try {
        await client.query(migration.sql);
        await client.query('INSERT INTO schema_migration (version, name) VALUES ($1, $2)', [
          migration.version,
          migration.name,
        ]);
        await client.query('COMMIT');
      } catch (error) {
        await client.query('ROLLBACK');
        throw error;
      }
      options.say(`schema ${migration.version}: ${migration.name}`);
    }
  } finally {
    await client.end();
  }
}

/** The newest version that was applied; undefined before the first. */
export async function schemaVersion(database: Database, signal: AbortSignal): Promise<number | undefined> {
  const [there] = await database.query<{ there: boolean }>(
    'schema-there',
    "SELECT to_regclass('schema_migration') IS NOT NULL AS there",
    [],
    signal,
  );
  if (there?.there !== true) return undefined;
  const [row] = await database.query<{ version: number | null }>(
    'schema-version',
    'SELECT max(version) AS version FROM schema_migration',
    [],
    signal,
  );
  return row?.version ?? undefined;
}

/** Whether this program can work on that version. */
export function isSchemaInRange(version: number | undefined): boolean {
  return version !== undefined && version >= SCHEMA_RANGE.from && version <= SCHEMA_RANGE.to;
}

async function connect(url: string, waitMs: number, say: (line: string) => void, signal: AbortSignal): Promise<Client> {
  const deadline = performance.now() + waitMs;
  for (let attempt = 0; ; attempt += 1) {
    signal.throwIfAborted();
    const client = new Client({
      connectionString: url,
      connectionTimeoutMillis: 5_000,
      application_name: 'lathe migrate',
    });
    client.on('error', () => undefined);
    try {
      await client.connect();
      return client;
    } catch (cause) {
      await client.end().catch(() => undefined);
      if (performance.now() > deadline) {
        throw new TransientError(
          'StoreUnavailable',
          `Postgres did not answer within ${waitMs / 1000} s; is its pod Ready, and is the URL right?`,
          { cause },
        );
      }
      if (attempt % 10 === 0) say('waiting for Postgres');
      await delay(500, undefined, { signal });
    }
  }
}

async function migrations(folder: URL): Promise<readonly Migration[]> {
  const files = (await readdir(folder)).filter((file) => file.endsWith('.sql')).toSorted();
  return await Promise.all(
    files.map(async (file) => ({
      version: Number(file.slice(0, 4)),
      name: file.slice(5, -4),
      sql: await readFile(new URL(file, folder), 'utf8'),
    })),
  );
}
