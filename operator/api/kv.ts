/** `kv`: small values beside the files; no versions, the last write counts. */
import { createHash } from 'node:crypto';
import { API_VERSION, KV_BYTES, type KeyValueList } from '../../proto/live/types.ts';
import { escapeName } from '../../proto/paths.ts';
import { z } from 'zod';
import { PermanentError } from '../errors.ts';
import { answerJson, bodyOf, cursorOf, cursorText, ifMatchOf, limitOf, type Call } from './call.ts';

const MAX_KEY_BYTES = 512;
const afterSchema = z.object({ after: z.string() });

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
  const { ifMatch, mustExist } = ifMatchOf(call);
  if (
    mustExist &&
    ifMatch === undefined &&
    (await call.store.getValue(call.workspace.id, key, call.signal)) === undefined
  )
    throw notThere(key);
  if (!(await call.store.putValue(call.workspace.id, key, value, ifMatch, call.signal)))
    throw new PermanentError(
      'PreconditionFailed',
      `the value of ${escapeName(key)} is not what the request says; read it again`,
    );
  call.response.writeHead(204, { etag: `"${createHash('sha256').update(value).digest('hex')}"` }).end();
}

export async function deleteKv(call: Call): Promise<void> {
  const key = keyOf(call.query);
  if (!(await call.store.deleteValue(call.workspace.id, key, call.signal))) throw notThere(key);
  call.response.writeHead(204).end();
}

async function list(call: Call): Promise<void> {
  const { query, store, workspace, signal } = call;
  const limit = limitOf(query);
  const after = cursorOf(query, afterSchema)?.after ?? '';
  const rows = await store.listValues(workspace.id, { prefix: query.get('prefix') ?? '', after, limit }, signal);
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

function keyOf(query: URLSearchParams): string {
  const key = query.get('key') ?? '';
  if (key === '' || Buffer.byteLength(key) > MAX_KEY_BYTES || key.includes('\0') || !key.isWellFormed())
    throw new PermanentError('BadRequest', `a key has 1 to ${MAX_KEY_BYTES} bytes of UTF-8 without NUL`);
  return key;
}

function notThere(key: string): PermanentError {
  return new PermanentError('NotFound', `there is no value under the key ${escapeName(key)}`);
}
