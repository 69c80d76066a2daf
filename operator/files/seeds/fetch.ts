/** HTTP to a host that somebody else named: to checked addresses only, redirects never by itself, errors by code. */
import { createWriteStream } from 'node:fs';
import { createHash } from 'node:crypto';
import { request as requestHttp, type IncomingMessage } from 'node:http';
import { request as requestHttps } from 'node:https';
import { isIP, type LookupFunction } from 'node:net';
import { Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { PermanentError, TransientError } from '../../errors.ts';
import type { Outbound } from '../../outbound.ts';

export type Caller = Readonly<{ outbound: Outbound; certificates?: readonly string[] }>;

const IDLE_MS = 30_000;
const MAX_REDIRECTS = 5;

/** The answer, whatever its status; the caller reads or destroys it. @throws PermanentError, TransientError */
export async function get(
  url: URL,
  headers: Readonly<Record<string, string>>,
  caller: Caller,
  signal: AbortSignal,
): Promise<IncomingMessage> {
  const isTls = assertScheme(url, caller.outbound);
  const addresses = await caller.outbound.resolve(url.hostname);
  return await new Promise<IncomingMessage>((resolve, reject) => {
    const options = {
      headers: { 'user-agent': 'lathe', 'accept-encoding': 'identity', ...headers },
      // The socket goes to what was checked; a second look-up could say something else.
      lookup: pinned(addresses),
      agent: false,
      signal,
      timeout: IDLE_MS,
    } as const;
    const request = isTls
      ? requestHttps(url, {
          ...options,
          ...(caller.certificates === undefined ? {} : { ca: [...caller.certificates] }),
        })
      : requestHttp(url, options);
    const failed = (error: Error) => reject(signal.aborted ? (signal.reason as Error) : unreachable(url.host, error));
    request.once('response', (response) => {
      response.once('error', () => undefined);
      resolve(response);
    });
    request.once('timeout', () => request.destroy(Object.assign(new Error('no answer'), { code: 'ETIMEDOUT' })));
    request.once('error', failed);
    request.end();
  });
}

/** The scheme's word is taken only for what it is: plain HTTP where the installation lists the host. */
export function assertScheme(url: URL, outbound: Outbound): boolean {
  if (url.username !== '' || url.password !== '')
    throw new PermanentError(
      'Forbidden',
      `the URL of host ${url.host} has credentials in it; they belong into a Secret`,
    );
  if (url.protocol === 'https:') return true;
  if (url.protocol !== 'http:') throw new PermanentError('Forbidden', `${url.protocol}// is not called; use https://`);
  if (!outbound.isListed(url.hostname))
    throw new PermanentError(
      'Forbidden',
      `http://${url.host} is not encrypted; use https://, or have the host listed in the chart's seed.allowedPrivateHosts`,
    );
  return false;
}

/** To a file, its hash compared; every hop is checked as the first was. @returns its bytes */
export async function download(
  from: Readonly<{ url: string; sha256: string }>,
  to: string,
  limits: Readonly<{ bytes: number; onBytes: (bytes: number) => void }>,
  caller: Caller,
  signal: AbortSignal,
): Promise<number> {
  const response = await follow(new URL(from.url), caller, signal);
  const hash = createHash('sha256');
  let bytes = 0;
  const count = new Transform({
    transform: (chunk: Buffer, _encoding, done) => {
      bytes += chunk.length;
      hash.update(chunk);
      limits.onBytes(bytes);
      done(bytes > limits.bytes ? tooLarge(limits.bytes) : null, chunk);
    },
  });
  const announced = Number(response.headers['content-length'] ?? 0);
  if (announced > limits.bytes) {
    response.destroy();
    throw tooLarge(limits.bytes);
  }
  response.setTimeout(IDLE_MS, () =>
    response.destroy(Object.assign(new Error('the transfer stands still'), { code: 'ETIMEDOUT' })),
  );
  try {
    await pipeline(response, count, createWriteStream(to, { mode: 0o600 }), { signal });
  } catch (error) {
    signal.throwIfAborted();
    throw error instanceof PermanentError ? error : unreachable(new URL(from.url).host, error);
  }
  const seen = hash.digest('hex');
  if (seen !== from.sha256)
    throw new PermanentError(
      'Conflict',
      `what ${new URL(from.url).host} sent (${bytes} bytes) has sha256 ${seen}, archive.sha256 is ${from.sha256}; nothing of it was used`,
    );
  return bytes;
}

async function follow(first: URL, caller: Caller, signal: AbortSignal): Promise<IncomingMessage> {
  let url = first;
  for (let hop = 0; hop <= MAX_REDIRECTS; hop += 1) {
    const response = await get(url, {}, caller, signal);
    const status = response.statusCode ?? 0;
    if (status === 200) return response;
    response.destroy();
    const { location } = response.headers;
    if (status < 300 || status >= 400 || location === undefined) throw refusedBy(url.host, status);
    url = targetOf(location, url);
  }
  throw new PermanentError('Forbidden', `${first.host} redirects more than ${MAX_REDIRECTS} times`);
}

export function targetOf(location: string, from: URL): URL {
  if (!URL.canParse(location, from.href))
    throw new PermanentError('Forbidden', `${from.host} redirects to what is no URL`);
  return new URL(location, from);
}

/** By status: what the server may get over, and what it will say again. */
export function refusedBy(host: string, status: number): PermanentError | TransientError {
  const message = `${host} answers ${status}`;
  if (status === 408 || status === 425 || status === 429 || status >= 500)
    return new TransientError('SeedFailed', message);
  if (status === 401 || status === 403) return new PermanentError('Forbidden', `${message}: it does not let us in`);
  if (status === 404 || status === 410) return new PermanentError('NotFound', `${message}: it is not there`);
  return new PermanentError('SeedFailed', message);
}

/** Certificates that are not right are for people; the rest of what can happen to a connection, time may heal. */
function unreachable(host: string, error: unknown): PermanentError | TransientError {
  if (error instanceof PermanentError || error instanceof TransientError) return error;
  const code = error instanceof Error && 'code' in error ? String(error.code) : 'Unknown';
  const message = `${host} can't be reached (${code}): ${error instanceof Error ? error.message : String(error)}`;
  return new TransientError('Unreachable', message, { cause: error });
}

function tooLarge(limit: number): PermanentError {
  return new PermanentError(
    'WorkspaceFull',
    `the archive has more than ${limit} bytes, which is what may be fetched (files.maxTotalSize, and the chart's seed.scratch)`,
  );
}

function pinned(addresses: readonly string[]): LookupFunction {
  const all = addresses.map((address) => ({ address, family: isIP(address) }));
  return (_host, options, done) => {
    const [first] = all;
    if (options.all === true) done(null, all);
    else done(null, first?.address ?? '', first?.family);
  };
}
