/** One request: what it asks, parsed once and within bounds, and how it is answered. */
import { createHash } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { HEADERS, LIST_LIMIT } from '../../proto/live/types.ts';
import { compileGlobs } from '../../proto/globs.ts';
import { normalisePath, WORKSPACE_DIR } from '../../proto/paths.ts';
import { z } from 'zod';
import { PermanentError } from '../errors.ts';
import type { ApiStore } from '../store/api-store.ts';
import type { ExportStore } from '../store/export-store.ts';
import type { WorkspaceRow } from '../store/rows.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { Identity } from './authentication.ts';
import type { Owner } from './owner.ts';

export type Deps = Readonly<{ store: WorkspaceStore & ApiStore & ExportStore; owner: Owner }>;
export type Call = Deps &
  Readonly<{
    request: IncomingMessage;
    response: ServerResponse;
    query: URLSearchParams;
    identity: Identity;
    workspace: WorkspaceRow;
    /** Aborts when the caller is gone. */
    signal: AbortSignal;
    /** Waits until so many bytes may be held, until the request has ended. @throws TransientError TooManyRequests */
    hold: (bytes: number) => Promise<void>;
    /** Whether the caller may approve what is held for others. */
    mayApprove: () => Promise<boolean>;
  }>;
export type Handler = (call: Call) => Promise<void>;

/** @throws PermanentError PathRefused, BadRequest */
export function pathOf(query: URLSearchParams, name = 'path'): string {
  const given = query.get(name);
  if (given === null) throw new PermanentError('BadRequest', `the query needs ${name}=`);
  return checkedPath(given);
}

export function checkedPath(given: unknown): string {
  if (typeof given !== 'string') throw new PermanentError('BadRequest', 'a path is a string');
  const result = normalisePath(given);
  if ('refused' in result) throw new PermanentError('PathRefused', result.refused);
  return result.path;
}

/** Patterns of people, who may write `/workspace/src/**` as they write `/workspace/src/a`. */
export function globsOf(patterns: readonly string[]): (path: string) => boolean {
  const within = `${WORKSPACE_DIR}/`;
  return compileGlobs(patterns.map((glob) => (glob.startsWith(within) ? glob.slice(within.length - 1) : glob)));
}

/** Of a whole number in the query that is 0 or more; undefined: it is not there. */
export function numberOf(query: URLSearchParams, name: string): number | undefined {
  const given = query.get(name);
  if (given === null || given === '') return undefined;
  const value = Number(given);
  if (!Number.isSafeInteger(value) || value < 0)
    throw new PermanentError('BadRequest', `${name} is a whole number of 0 or more`);
  return value;
}

export function flagOf(query: URLSearchParams, name: string): boolean | undefined {
  const given = query.get(name);
  if (given === null) return undefined;
  if (given === 'true' || given === '') return true;
  if (given === 'false') return false;
  throw new PermanentError('BadRequest', `${name} is true or false`);
}

export function limitOf(query: URLSearchParams): number {
  return Math.min(Math.max(numberOf(query, 'limit') ?? LIST_LIMIT.default, 1), LIST_LIMIT.max);
}

/** The version asked for; the head without one. @throws PermanentError NotFound */
export function versionOf(call: Call, name = 'version'): bigint {
  const given = numberOf(call.query, name);
  return given === undefined ? call.workspace.head : atMost(call, given);
}

/** @throws PermanentError NotFound: that version is not there yet */
export function atMost({ workspace }: Call, given: number): bigint {
  if (BigInt(given) > workspace.head)
    throw new PermanentError('NotFound', `there is no version ${given}; the head is ${workspace.head}`);
  return BigInt(given);
}

/** A version in a cursor. */
export const versionSchema = z.int().min(0);

/** Where a list goes on. Opaque to callers; nothing in it is secret. */
export function cursorOf<T extends object>(query: URLSearchParams, schema: z.ZodType<T>): T | undefined {
  const given = query.get('continue');
  if (given === null || given === '') return undefined;
  try {
    return schema.parse(JSON.parse(Buffer.from(given, 'base64url').toString('utf8')));
  } catch {
    // The same answer as to any other text.
  }
  throw new PermanentError('BadRequest', 'continue is not what a list gave; begin anew without it');
}

/** Text that the store takes: NUL it does not. */
export const cursorTextField = z
  .string()
  .max(8_192)
  .refine((text) => !text.includes('\0') && text.isWellFormed());

export function cursorText(cursor: object): string {
  return Buffer.from(JSON.stringify(cursor)).toString('base64url');
}

/** @throws PermanentError RequestEntityTooLarge, before reading where the length is told */
export async function bodyOf({ request, signal, hold }: Call, maxBytes: number): Promise<Buffer> {
  const told = request.headers['content-length'];
  if (Number(told ?? 0) > maxBytes) throw tooLarge(maxBytes);
  await hold(told === undefined ? maxBytes : Number(told));
  const pieces: Buffer[] = [];
  let bytes = 0;
  for await (const piece of request as AsyncIterable<Buffer>) {
    signal.throwIfAborted();
    bytes += piece.length;
    if (bytes > maxBytes) throw tooLarge(maxBytes);
    pieces.push(piece);
  }
  return Buffer.concat(pieces, bytes);
}

/** The same as it comes; what is over the limit breaks it off. */
export async function* streamOf({ request, signal }: Call, maxBytes: number): AsyncIterable<Buffer> {
  if (Number(request.headers['content-length'] ?? 0) > maxBytes) throw tooLarge(maxBytes);
  let bytes = 0;
  for await (const piece of request as AsyncIterable<Buffer>) {
    signal.throwIfAborted();
    bytes += piece.length;
    if (bytes > maxBytes) throw tooLarge(maxBytes);
    yield piece;
  }
}

function tooLarge(maxBytes: number): PermanentError {
  return new PermanentError(
    'RequestEntityTooLarge',
    `a body has at most ${maxBytes} bytes here; send a large file in parts (uploads=true), many files as several archives`,
  );
}

/** @throws PermanentError BadRequest */
export async function jsonOf(call: Call): Promise<Record<string, unknown>> {
  const body = await bodyOf(call, 1024 * 1024);
  try {
    const value: unknown = JSON.parse(body.toString('utf8'));
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch {
    // Said below.
  }
  throw new PermanentError('BadRequest', 'the body is one JSON object');
}

/** Of the request's key and what it asks: the same key with something else is refused. */
export function idempotencyOf(
  { request, query }: Call,
  content: Buffer | string,
): { key: string; requestSha256: Buffer } | undefined {
  const key = request.headers['idempotency-key'];
  if (key === undefined) return undefined;
  if (typeof key !== 'string' || !/^[\x21-\x7e]{1,128}$/.test(key))
    throw new PermanentError('BadRequest', 'an Idempotency-Key has 1 to 128 visible ASCII characters');
  const hash = createHash('sha256').update(`${request.method ?? ''} ${(request.url ?? '').split('?')[0] ?? ''}\n`);
  const sorted = [...query].map(([name, value]) => `${name}=${value}`).sort();
  for (const header of ['if-match', 'if-none-match'] as const)
    sorted.push(`${header}:${request.headers[header] ?? ''}`);
  return { key, requestSha256: hash.update(JSON.stringify(sorted)).update(content).digest() };
}

/** `If-Match: "hash"` or `If-None-Match: *`, as a write carries it: empty means that nothing may be there. */
export function ifMatchOf({ request }: Call): { ifMatch?: Buffer; mustExist: boolean } {
  const match = request.headers['if-match'];
  const none = request.headers['if-none-match'];
  if (none !== undefined) {
    if (none.trim() !== '*') throw new PermanentError('BadRequest', 'a write knows If-None-Match: * only');
    return { ifMatch: Buffer.alloc(0), mustExist: false };
  }
  if (match === undefined) return { mustExist: false };
  if (match.trim() === '*') return { mustExist: true };
  const hex = /^"([0-9a-f]{64})"$/.exec(match.trim())?.[1];
  if (hex === undefined)
    throw new PermanentError('BadRequest', 'If-Match is one ETag as it was given: the hash of the content in quotes');
  return { ifMatch: Buffer.from(hex, 'hex'), mustExist: true };
}

export function answerJson({ response }: Call, body: object, code = 200): void {
  const text = `${JSON.stringify(body)}\n`;
  response.writeHead(code, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) });
  response.end(text);
}

/** Waits for the caller to take it. */
export async function answerStream({ response, signal }: Call, pieces: AsyncIterable<Buffer>): Promise<void> {
  for await (const piece of pieces) {
    signal.throwIfAborted();
    if (!response.write(piece)) await drained(response, signal);
  }
  response.end();
}

function drained(response: ServerResponse, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      response.off('drain', done).off('close', done);
      signal.removeEventListener('abort', done);
      resolve();
    };
    response.once('drain', done).once('close', done);
    signal.addEventListener('abort', done, { once: true });
  });
}

export { HEADERS };
