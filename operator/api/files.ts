/** `files`: list, read, write and remove; one file or several, without any pod. */
import { API_VERSION, HEADERS, PART_BYTES, type FileInfo, type FileList } from '../../proto/live/types.ts';
import { escapeName, WORKSPACE_DIR } from '../../proto/paths.ts';
import { z } from 'zod';
import { PermanentError } from '../errors.ts';
import type { FileEntry } from '../store/rows.ts';
import {
  answerJson,
  answerStream,
  atMost,
  bodyOf,
  checkedPath,
  cursorOf,
  cursorText,
  cursorTextField,
  flagOf,
  globsOf,
  idempotencyOf,
  ifMatchOf,
  jsonOf,
  limitOf,
  pathOf,
  versionOf,
  versionSchema,
  type Call,
} from './call.ts';
import { operationsOf } from './operations.ts';
import { namesEtag, parseRange } from './range.ts';
import { beginUpload, completeUpload, dropUpload, putUpload, showUpload } from './uploads.ts';
import { answerWritten, change, fileChange, write } from './writes.ts';

/** Rows looked at for one page of a glob; a page may then be short, or empty, and go on. */
const SCANNED = 50_000;

export async function getFiles(call: Call): Promise<void> {
  if (call.query.has('upload')) return await showUpload(call);
  return call.query.has('path') ? await read(call) : await list(call);
}

export async function putFiles(call: Call): Promise<void> {
  if (call.query.has('upload')) return await putUpload(call);
  const path = pathOf(call.query);
  const executable = flagOf(call.query, 'executable');
  const content = await bodyOf(call, PART_BYTES);
  const more = { ...ifMatchOf(call), ...(executable === undefined ? {} : { executable }) };
  const dryRun = flagOf(call.query, 'dryRun') ?? false;
  const changes = [await fileChange(call, path, content, more, dryRun)];
  answerWritten(call, await write(call, { changes, idempotency: idempotencyOf(call, content) }), true);
}

export async function deleteFiles(call: Call): Promise<void> {
  if (call.query.has('upload')) return await dropUpload(call);
  const recursive = flagOf(call.query, 'recursive') ?? false;
  const changes = [change(pathOf(call.query), 'deleted', { recursive, ...ifMatchOf(call), mustExist: true })];
  answerWritten(call, await write(call, { changes, idempotency: idempotencyOf(call, '') }), true);
}

export async function postFiles(call: Call): Promise<void> {
  if (call.query.has('upload')) return await completeUpload(call);
  if (flagOf(call.query, 'uploads') === true) return await beginUpload(call);
  const body = await jsonOf(call);
  const changes = await operationsOf(call, body);
  answerWritten(
    call,
    await write(call, { changes, idempotency: idempotencyOf(call, JSON.stringify(body)), allOrNothing: true }),
    true,
  );
}

export function infoOf(entry: FileEntry): FileInfo {
  return {
    path: entry.path,
    kind: entry.kind,
    executable: entry.executable,
    size: Number(entry.size),
    ...(entry.sha256 === null ? {} : { sha256: entry.sha256.toString('hex') }),
    ...(entry.target === null ? {} : { target: entry.target }),
    version: Number(entry.version),
  };
}

/** Where a listing stands: the version, so that pages fit together, and the last path. */
const cursorSchema = z.object({ version: versionSchema, after: cursorTextField });
type Cursor = z.infer<typeof cursorSchema>;

/** Entries that the query names, page by page, with where to go on. */
export async function* entriesOf(call: Call): AsyncIterable<{ entry: FileEntry; cursor: Cursor; matches: boolean }> {
  const { query, store, workspace, signal } = call;
  const cursor = cursorOf(query, cursorSchema);
  const version = listedVersion(call);
  const glob = query.get('glob');
  const matches = glob === null ? () => true : globsOf([glob]);
  const given = query.get('prefix') ?? '';
  const prefix = ['', '/', WORKSPACE_DIR, `${WORKSPACE_DIR}/`].includes(given)
    ? '/'
    : `${checkedPath(given)}${given.endsWith('/') ? '/' : ''}`;
  for (let after = cursor?.after ?? ''; ;) {
    const page = await store.listFiles(workspace.id, { version, prefix, after, limit: 1_000 }, signal);
    for (const entry of page) {
      after = entry.path;
      yield { entry, cursor: { version: Number(version), after }, matches: matches(entry.path) };
    }
    if (page.length < 1_000) return;
  }
}

/** Of all pages that belong together. */
function listedVersion(call: Call): bigint {
  const cursor = cursorOf(call.query, cursorSchema);
  return cursor === undefined ? versionOf(call) : atMost(call, cursor.version);
}

async function list(call: Call): Promise<void> {
  const limit = limitOf(call.query);
  const items: FileInfo[] = [];
  let scanned = 0;
  let next: Cursor | undefined;
  let last: Cursor | undefined;
  for await (const { entry, cursor, matches } of entriesOf(call)) {
    if (items.length === limit || scanned === SCANNED) {
      next = last;
      break;
    }
    if (matches) items.push(infoOf(entry));
    scanned += 1;
    last = cursor;
  }
  const version = Number(listedVersion(call));
  const metadata = next === undefined ? {} : { continue: cursorText(next) };
  answerJson(call, { kind: 'FileList', apiVersion: API_VERSION, metadata, version, items } satisfies FileList);
}

async function read(call: Call): Promise<void> {
  const { store, workspace, request, response, signal } = call;
  const path = pathOf(call.query);
  const version = versionOf(call);
  const entry = (await store.entriesAt(workspace.id, [path], version, signal)).get(path);
  if (entry === undefined) throw await notThere(call, path, version);
  const size = Number(entry.size);
  const etag = entry.sha256 === null ? undefined : `"${entry.sha256.toString('hex')}"`;
  const headers = {
    [HEADERS.version]: String(version),
    [HEADERS.fileVersion]: String(entry.version),
    [HEADERS.kind]: entry.kind,
    [HEADERS.mode]:
      entry.kind === 'symlink' ? '0777' : entry.executable || entry.kind === 'directory' ? '0755' : '0644',
    ...(etag === undefined ? {} : { etag }),
    'accept-ranges': 'bytes',
    // A browser must not run what a sandbox wrote.
    'content-type':
      entry.kind === 'symlink'
        ? 'inode/symlink'
        : entry.kind === 'directory'
          ? 'inode/directory'
          : 'application/octet-stream',
    'content-security-policy': 'sandbox',
    'x-content-type-options': 'nosniff',
  };
  if (etag !== undefined && namesEtag(request.headers['if-none-match'], etag)) {
    response.writeHead(304, headers).end();
    return;
  }
  // A part of another content than the caller has begun with would be put together with that.
  const isSame = request.headers['if-range'] === undefined || request.headers['if-range'] === etag;
  const range = entry.kind === 'regular' && isSame ? parseRange(request.headers.range, size) : undefined;
  if (range === 'unsatisfiable') {
    response.setHeader('content-range', `bytes */${size}`);
    throw new PermanentError('RangeNotSatisfiable', `${escapeName(path)} has ${size} bytes`);
  }
  const { from, to } = range ?? { from: 0, to: size };
  response.writeHead(range === undefined ? 200 : 206, {
    ...headers,
    'content-length': to - from,
    ...(range === undefined ? {} : { 'content-range': `bytes ${from}-${to - 1}/${size}` }),
  });
  if (request.method === 'HEAD' || to === from) {
    response.end();
    return;
  }
  if (entry.sha256 === null) {
    response.end(entry.target ?? '');
    return;
  }
  await answerStream(call, store.readBlob(workspace.tenant, entry.sha256, signal, { from, to }));
}

async function notThere({ store, workspace, signal }: Call, path: string, version: bigint): Promise<PermanentError> {
  const inside = await store.listFiles(workspace.id, { version, prefix: `${path}/`, after: '', limit: 1 }, signal);
  return new PermanentError(
    'NotFound',
    inside.length > 0
      ? `${escapeName(path)} is a folder; list it with prefix=${escapeName(`${path}/`).slice(1, -1)}`
      : `there is no file ${escapeName(path)} in version ${version} of workspace ${workspace.namespace}/${workspace.name}`,
  );
}
