/** Connections to Postgres, and the one door for its errors. */
import { Pool, types, type PoolConfig, type QueryResultRow } from 'pg';
import { PermanentError, TransientError } from '../errors.ts';
import { copyOut } from './copy-out.ts';

/** int8 as bigint: versions, sequences and epochs outgrow no number in a test and every number in a year. */
const INT8 = 20;
const typeParsers: PoolConfig['types'] = {
  getTypeParser: (oid, format) =>
    (oid === INT8 && format !== 'binary' ? BigInt : types.getTypeParser(oid, format)) as never,
};

export type Database = Readonly<{
  /** A prepared statement: planned once per connection, one round trip. Names are unique to their text. */
  query<T extends QueryResultRow>(
    name: string,
    text: string,
    values: readonly unknown[],
    signal?: AbortSignal,
  ): Promise<T[]>;
  /** The one column of bytes of a SELECT that has its values in it: the caller answers for what they are. */
  bytes(select: string, signal?: AbortSignal): Promise<Buffer[]>;
  /** Several statements, all or nothing. The connection is the caller's until `work` settles. */
  transaction<T>(work: (query: Database['query']) => Promise<T>, signal?: AbortSignal): Promise<T>;
  close(): Promise<void>;
}>;

/** The owner of a lease is not (or no longer) who it thinks; whatever it wanted to write was not written. */
export class FenceLost extends TransientError {
  constructor(message: string, cause: unknown) {
    super('FenceLost', message, { cause });
    this.name = 'FenceLost';
  }
}

/** A result for an execution that is not dispatched to this sandbox and boot: forged, repeated or late. Nothing was written. */
export class ExecutionNotDispatched extends PermanentError {
  constructor(message: string, cause: unknown) {
    super('ExecutionNotDispatched', message, { cause });
    this.name = 'ExecutionNotDispatched';
  }
}

/** Somebody else's commit came between what was looked at and what was written. Nothing was written; look again. */
export class ChangedMeanwhile extends TransientError {
  constructor(message: string, cause: unknown) {
    super('Conflict', message, { cause });
    this.name = 'ChangedMeanwhile';
  }
}

/**
 * @param size connections at most; callers beyond it wait. Work and bulk have a pool each (CONTRACTS 5), so that large
 *   transfers never hold up a commit.
 */
export function openDatabase(
  url: string,
  options: Readonly<{
    size: number;
    name: string;
    /** More settings of a session, `name=value`. */ settings?: readonly string[];
  }>,
): Database {
  const pool = new Pool({
    connectionString: url,
    max: options.size,
    application_name: options.name,
    types: typeParsers,
    keepAlive: true,
    connectionTimeoutMillis: 5_000,
    idleTimeoutMillis: 30_000,
    // A paused owner must not hold its locks against a takeover (CONTRACTS 2).
    idle_in_transaction_session_timeout: 3_000,
    statement_timeout: 30_000,
    // A prepared statement keeps its plan. Of a table that is still small the plan would be to read all of it, and it would
    // be kept as the table grows; all our statements have an index. For the same reason a list of keys is looked up key by
    // key (LATERAL … LIMIT 1): `= ANY` may become a filter over everything.
    options: ['jit=off', 'enable_seqscan=off', ...(options.settings ?? [])].map((s) => `-c ${s}`).join(' '),
  });
  // An idle connection that breaks is replaced at its next use, which reports if that fails too.
  pool.on('error', () => undefined);
  return {
    query: async (name, text, values, signal) => {
      signal?.throwIfAborted();
      try {
        return (await pool.query({ name, text, values: [...values] })).rows;
      } catch (error) {
        throw translate(error);
      }
    },
    bytes: async (select, signal) => {
      signal?.throwIfAborted();
      const client = await pool.connect().catch((error: unknown) => {
        throw translate(error);
      });
      let broken: Error | undefined;
      try {
        return await copyOut(client, select);
      } catch (error) {
        broken = error instanceof Error ? error : new Error(String(error));
        throw translate(error);
      } finally {
        client.release(broken);
      }
    },
    transaction: async (work, signal) => {
      signal?.throwIfAborted();
      const client = await pool.connect().catch((error: unknown) => {
        throw translate(error);
      });
      let broken: Error | undefined;
      try {
        await client.query('BEGIN');
        const result = await work(
          async (name, text, values) => (await client.query({ name, text, values: [...values] })).rows,
        );
        await client.query('COMMIT');
        return result;
      } catch (error) {
        await client.query('ROLLBACK').catch((e: Error) => (broken = e));
        throw translate(error);
      } finally {
        client.release(broken);
      }
    },
    close: () => pool.end(),
  };
}

/** By SQLSTATE, never by text. What is not a database's error passes through. */
export function translate(error: unknown): unknown {
  if (error instanceof TransientError || error instanceof PermanentError || !(error instanceof Error)) return error;
  const code = 'code' in error && typeof error.code === 'string' ? error.code : '';
  if (code === 'LT001') return new FenceLost(error.message, error);
  if (code === 'LT002') return new ExecutionNotDispatched(error.message, error);
  if (code === 'LT007') return new PermanentError('QuotaExceeded', error.message, { cause: error });
  if (code === 'LT004' || code === 'LT005') return new ChangedMeanwhile(error.message, error);
  if (code === 'LT010')
    return new PermanentError('Conflict', `this workspace can't be imported into: ${error.message}; make a new one`, {
      cause: error,
    });
  if (code === 'LT011') return new TransientError('Conflict', `${error.message}; import again`, { cause: error });
  if (code === 'LT012')
    return new PermanentError('BadRequest', `this is no whole export of a workspace: ${error.message}`, {
      cause: error,
    });
  // 08 connection, 53 resources, 57P0x shutdown, 40 rollback, 55P03 lock timeout, 25006 read-only; no code: the socket.
  const transient = /^(08|53|57|40|25006|25P03|55P03)/.test(code) || /^E[A-Z]+$/.test(code) || code === '';
  if (transient) {
    return new TransientError(
      'StoreUnavailable',
      `Postgres did not do it (${code || 'no connection'}): ${error.message}; it is tried again`,
      { cause: error },
    );
  }
  return error;
}
