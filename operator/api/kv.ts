/** `kv`: small values beside the files; no versions, the last write counts. */
import { createHash } from 'node:crypto';
import { API_VERSION, KV_BYTES, KV_LIMITS, type KeyValueList } from '../../proto/live/types.ts';
import { isKey, MAX_KEY_BYTES } from '../../proto/live/keys.ts';
import { escapeName } from '../../proto/paths.ts';
import { z } from 'zod';
import { PermanentError } from '../errors.ts';
import type { ValueOutcome } from '../store/api-store.ts';
import {
  answerJson,
  bodyOf,
  cursorOf,
  cursorText,
  cursorTextField,
  flagOf,
  idempotencyOf,
  ifMatchOf,
  limitOf,
  type Call,
} from './call.ts';

const afterSchema = z.object({ after: cursorTextField });

export async function getKv(call: Call): Promise<void> {
  const { query, store, workspace, response, signal } = call;
  if (!query.has('key')) return await list(call);
  const key = keyOf(query);
  const value = await store.getValue(workspace.id, key, signal);
  if (value === undefined) throw notThere(key);
  response
    .writeHead(200, {
      'content-type': 'application/octet-stream',
      'content-length': value.length,
      etag: `"${createHash('sha256').update(value).digest('hex')}"`,
      'x-content-type-options': 'nosniff',
    })
    .end(value);
}

export async function putKv(call: Call): Promise<void> {
  const key = keyOf(call.query);
  const value = await bodyOf(call, KV_BYTES);
  await written(call, key, value);
  call.response.writeHead(204, { etag: `"${createHash('sha256').update(value).digest('hex')}"` }).end();
}

export async function deleteKv(call: Call): Promise<void> {
  const key = keyOf(call.query);
  await written(call, key, undefined);
  call.response.writeHead(204).end();
}

async function written(call: Call, key: string, value: Buffer | undefined): Promise<void> {
  const { store, workspace, query, signal } = call;
  const idempotency = idempotencyOf(call, value ?? '');
  const { ifMatch, mustExist } = ifMatchOf(call);
  const options = {
    mustExist: mustExist || value === undefined,
    dryRun: flagOf(query, 'dryRun') ?? false,
    ...(ifMatch === undefined ? {} : { ifMatch }),
    ...(idempotency === undefined ? {} : { idempotency }),
  };
  const refusal = refusalOf(await store.writeValue(workspace, key, value, options, signal), key);
  if (refusal !== undefined) throw refusal;
}

/** Undefined: it was done. */
export function refusalOf(outcome: ValueOutcome, key: string): PermanentError | undefined {
  const name = escapeName(key);
  switch (outcome) {
    case 'done':
      return undefined;
    case 'absent':
      return notThere(key);
    case 'changed':
      return new PermanentError(
        'PreconditionFailed',
        `the value of ${name} is not what the request says; read it again and decide anew`,
      );
    case 'tooMany':
      return new PermanentError('WorkspaceFull', `a workspace has at most ${KV_LIMITS.keys} values; remove one`);
    case 'full':
      return new PermanentError(
        'WorkspaceFull',
        `with ${name} the values of this workspace would have more than ${KV_LIMITS.bytes} bytes; put large ones into files`,
      );
    case 'otherRequest':
      return new PermanentError('Conflict', 'this Idempotency-Key was used for another request; take a new one');
  }
}

async function list(call: Call): Promise<void> {
  const { query, store, workspace, signal } = call;
  const limit = limitOf(query);
  const after = cursorOf(query, afterSchema)?.after ?? '';
  const rows = await store.listValues(workspace.id, { prefix: prefixOf(query), after, limit }, signal);
  const last = rows.at(-1);
  const body: KeyValueList = {
    kind: 'KeyValueList',
    apiVersion: API_VERSION,
    metadata: rows.length < limit || last === undefined ? {} : { continue: cursorText({ after: last.key }) },
    items: rows.map((row) => ({
      key: row.key,
      size: row.size,
      sha256: row.sha256.toString('hex'),
      updatedAt: row.updated_at.toISOString(),
    })),
  };
  answerJson(call, body);
}

function prefixOf(query: URLSearchParams): string {
  const prefix = query.get('prefix') ?? '';
  if (prefix !== '' && !isKey(prefix))
    throw new PermanentError('BadRequest', `a prefix has at most ${MAX_KEY_BYTES} bytes of UTF-8 without NUL`);
  return prefix;
}

function keyOf(query: URLSearchParams): string {
  const key = query.get('key') ?? '';
  if (!isKey(key)) throw new PermanentError('BadRequest', `a key has 1 to ${MAX_KEY_BYTES} bytes of UTF-8 without NUL`);
  return key;
}

function notThere(key: string): PermanentError {
  return new PermanentError('NotFound', `there is no value under the key ${escapeName(key)}`);
}
