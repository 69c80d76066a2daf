/** Requests over kept connections: what may be repeated is, a bounded number of times. */
import { randomUUID } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import { setTimeout as delay } from 'node:timers/promises';
import { request, type Dispatcher } from 'undici';
import { errorOf, LatheError, UnavailableError } from './errors.ts';

export type Ask = Readonly<{
  query?: Readonly<Record<string, string | number | boolean | undefined>>;
  headers?: Readonly<Record<string, string>>;
  body?: Buffer | string;
  signal?: AbortSignal | undefined;
}>;
export type Answer = Readonly<{ code: number; headers: IncomingHttpHeaders; body: Buffer }>;
export type Transport = AsyncDisposable &
  Readonly<{
    /**
     * GET and HEAD are repeated as they are, everything else under one Idempotency-Key. Answers other than 2xx and 304
     * are thrown. @throws LatheError
     */
    ask(method: string, path: string, ask?: Ask): Promise<Answer>;
  }>;

const ATTEMPTS = 5;
const FIRST_WAIT_MS = 100;
const MAX_WAIT_MS = 10_000;
/** The API server ends a request after 60 s. */
const REQUEST_MS = 70_000;

export function createTransport(
  options: Readonly<{
    server: string;
    agent: () => Promise<Dispatcher>;
    headers: () => Promise<Record<string, string>>;
  }>,
): Transport {
  return {
    ask: async (method, path, { query = {}, headers = {}, body, signal } = {}) => {
      const parameters = new URLSearchParams();
      for (const [name, value] of Object.entries(query)) if (value !== undefined) parameters.set(name, String(value));
      const text = parameters.toString();
      const url = `${options.server.replace(/\/$/, '')}${path}${text === '' ? '' : `?${text}`}`;
      const all = {
        accept: 'application/json, */*',
        ...(method === 'GET' || method === 'HEAD' ? {} : { 'idempotency-key': randomUUID() }),
        ...headers,
      };
      for (let attempt = 1; ; attempt += 1) {
        try {
          return await once(method, url, { ...(await options.headers()), ...all }, body, signal);
        } catch (error) {
          signal?.throwIfAborted();
          if (!(error instanceof UnavailableError) || attempt === ATTEMPTS) throw error;
          const wait = Math.min(MAX_WAIT_MS, FIRST_WAIT_MS * 2 ** attempt) * (0.5 + Math.random() / 2);
          await delay(Math.max(wait, error.retryAfterMs ?? 0), undefined, signal === undefined ? {} : { signal });
        }
      }
    },
    [Symbol.asyncDispose]: async () => await (await options.agent()).close(),
  };

  async function once(
    method: string,
    url: string,
    headers: Record<string, string>,
    body: Buffer | string | undefined,
    signal: AbortSignal | undefined,
  ): Promise<Answer> {
    const limit = AbortSignal.timeout(REQUEST_MS);
    try {
      const response = await request(url, {
        method: method as Dispatcher.HttpMethod,
        headers,
        body: body ?? null,
        dispatcher: await options.agent(),
        // By default undici closes the connection after each HEAD.
        reset: false,
        signal: signal === undefined ? limit : AbortSignal.any([signal, limit]),
      });
      const bytes = Buffer.from(await response.body.arrayBuffer());
      if (response.statusCode >= 300 && response.statusCode !== 304)
        throw errorOf(response.statusCode, bytes.toString('utf8'), one(response.headers['retry-after']));
      return { code: response.statusCode, headers: response.headers, body: bytes };
    } catch (error) {
      if (error instanceof LatheError || signal?.aborted === true) throw error;
      const why = error instanceof Error ? error.message : String(error);
      throw new UnavailableError('ServiceUnavailable', 0, `${new URL(url).origin} did not answer: ${why}`, {
        cause: error,
      });
    }
  }
}

function one(header: string | string[] | undefined): string | undefined {
  return Array.isArray(header) ? header[0] : header;
}
