/** `versions`, `diff`, `restore` and `log`: what was, and back to it. */
import {
  API_VERSION,
  PART_BYTES,
  type FileChange,
  type FileDiff,
  type LogLine,
  type VersionList,
} from '../../proto/live/types.ts';
import { z } from 'zod';
import { PermanentError } from '../errors.ts';
import { patchOf, type Side } from '../files/patch.ts';
import type { FileEntry } from '../store/rows.ts';
import type { FileDifference } from '../store/workspace-store.ts';
import {
  answerJson,
  answerStream,
  atMost,
  checkedPath,
  cursorOf,
  cursorText,
  cursorTextField,
  globsOf,
  idempotencyOf,
  jsonOf,
  limitOf,
  numberOf,
  versionOf,
  versionSchema,
  type Call,
} from './call.ts';
import { infoOf } from './files.ts';
import { answerWritten, change, write } from './writes.ts';

/** What a patch shows of one file; a larger one is named only. */
const PATCH_FILE_BYTES = 1024 * 1024;
/** Events that tell of files. */
const FILE_EVENTS: readonly string[] = ['files.committed', 'execution.done'];
/** Held at once; one has what a command printed, up to 32 KiB. */
const LOG_PAGE = 100;

const beforeSchema = z.object({ before: versionSchema });
const diffSchema = z.object({ from: versionSchema, to: versionSchema, after: cursorTextField });

export async function getVersions(call: Call): Promise<void> {
  const { query, store, workspace, signal } = call;
  const limit = limitOf(query);
  const path = query.get('path');
  const before = BigInt(cursorOf(query, beforeSchema)?.before ?? Number(workspace.head) + 1);
  const rows = await store.versions(
    workspace.id,
    { before, limit, ...(path === null ? {} : { path: checkedPath(path) }) },
    signal,
  );
  const last = rows.at(-1);
  const body: VersionList = {
    kind: 'VersionList',
    apiVersion: API_VERSION,
    metadata:
      rows.length < limit || last === undefined ? {} : { continue: cursorText({ before: Number(last.version) }) },
    head: Number(workspace.head),
    items: rows.map((row) => ({
      version: Number(row.version),
      at: row.at.toISOString(),
      origin: row.origin,
      ...(row.actor === null ? {} : { actor: row.actor }),
      ...(row.turn === null ? {} : { turn: row.turn }),
      ...(row.session === null ? {} : { session: row.session }),
      ...(row.execution === null ? {} : { execution: row.execution }),
      created: row.created,
      changed: row.changed,
      deleted: row.deleted,
    })),
  };
  answerJson(call, body);
}

export async function getDiff(call: Call): Promise<void> {
  const { query, store, workspace, signal } = call;
  // Pages are of the same two versions, wherever the head is by then.
  const cursor = cursorOf(query, diffSchema);
  const to = cursor === undefined ? versionOf(call, 'to') : atMost(call, cursor.to);
  const from =
    cursor === undefined
      ? numberOf(query, 'from') === undefined
        ? to - (to === 0n ? 0n : 1n)
        : versionOf(call, 'from')
      : atMost(call, cursor.from);
  const glob = query.get('glob');
  const matches = glob === null ? () => true : globsOf([glob]);
  const all = (await store.changesBetween(workspace.id, from, to, signal)).filter(({ path }) => matches(path));
  const format = query.get('format') ?? 'json';
  if (format === 'patch') {
    await call.hold(PART_BYTES);
    call.response.writeHead(200, { 'content-type': 'text/x-diff; charset=utf-8' });
    return await answerStream(call, patches(call, all));
  }
  if (format !== 'json') throw new PermanentError('BadRequest', 'format is json or patch');
  const limit = limitOf(query);
  const after = cursor?.after ?? '';
  const rest = after === '' ? all : all.filter(({ path }) => Buffer.compare(Buffer.from(path), Buffer.from(after)) > 0);
  const items = rest.slice(0, limit);
  const last = items.at(-1);
  const body: FileDiff = {
    kind: 'FileDiff',
    apiVersion: API_VERSION,
    metadata:
      rest.length > limit && last !== undefined
        ? { continue: cursorText({ from: Number(from), to: Number(to), after: last.path }) }
        : {},
    from: Number(from),
    to: Number(to),
    items: items.map(fileChangeOf),
  };
  answerJson(call, body);
}

function fileChangeOf({ path, before, after }: FileDifference): FileChange {
  return {
    path,
    change: before === undefined ? 'created' : after === undefined ? 'deleted' : 'changed',
    ...(before === undefined ? {} : { before: infoOf(before) }),
    ...(after === undefined ? {} : { after: infoOf(after) }),
  };
}

async function* patches(call: Call, all: readonly FileDifference[]): AsyncIterable<Buffer> {
  for (const { path, before, after } of all)
    yield Buffer.from(patchOf(path, await sideOf(call, before), await sideOf(call, after)));
}

async function sideOf({ store, workspace, signal }: Call, entry: FileEntry | undefined): Promise<Side | undefined> {
  if (entry === undefined) return undefined;
  const { kind, executable, target, sha256 } = entry;
  if (entry.size > PATCH_FILE_BYTES) return { kind, executable, content: 'too large' };
  if (sha256 === null) return { kind, executable, content: Buffer.from(target ?? '') };
  const pieces: Buffer[] = [];
  for await (const piece of store.readBlob(workspace.tenant, sha256, signal)) pieces.push(piece);
  return { kind, executable, content: Buffer.concat(pieces) };
}

const restoreSchema = z.object({
  version: z.int().min(0),
  paths: z.array(z.string().min(1).max(4_096)).min(1).max(1_000).optional(),
  dryRun: z.boolean().optional(),
});

/** A new version in which the named paths are what they were; what came between stays in the history. */
export async function postRestore(call: Call): Promise<void> {
  const { store, workspace, signal } = call;
  const body = await jsonOf(call);
  const parsed = restoreSchema.safeParse(body);
  if (!parsed.success)
    throw new PermanentError(
      'BadRequest',
      `a restore is {"version", "paths"?, "dryRun"?}: ${parsed.error.issues[0]?.message ?? ''}`,
    );
  const { version, paths, dryRun = false } = parsed.data;
  if (BigInt(version) > workspace.head)
    throw new PermanentError('NotFound', `there is no version ${version}; the head is ${workspace.head}`);
  const matches = paths === undefined ? () => true : globsOf(paths.flatMap((path) => [path, `${path}/**`]));
  const all = await store.changesBetween(workspace.id, workspace.head, BigInt(version), signal);
  const changes = all
    .filter(({ path }) => matches(path))
    .map(({ path, after }) =>
      after === undefined
        ? change(path, 'deleted')
        : change(path, after.kind, {
            size: after.size,
            executable: after.executable,
            ...(after.sha256 === null ? {} : { sha256: after.sha256 }),
            ...(after.target === null ? {} : { target: after.target }),
          }),
    );
  // Deletions first: where a folder was a file before, it has to go.
  changes.sort((a, b) => Number(b.kind === 'deleted') - Number(a.kind === 'deleted'));
  if (dryRun) call.query.set('dryRun', 'true');
  answerWritten(
    call,
    await write(call, {
      origin: 'restore',
      changes,
      idempotency: idempotencyOf(call, JSON.stringify(body)),
      dryRun,
      mayDelete: true,
    }),
  );
}

/** JSON lines, in order of `seq`. */
export async function getLog(call: Call): Promise<void> {
  const { query, store, workspace, signal } = call;
  const limit = limitOf(query);
  const start = BigInt(numberOf(query, 'after') ?? 0);
  call.response.writeHead(200, { 'content-type': 'application/jsonl' });
  await answerStream(
    call,
    (async function* () {
      let left = limit;
      for (let after = start; left > 0;) {
        const page = await store.readEvents(
          workspace.id,
          { after, types: FILE_EVENTS, limit: Math.min(left, LOG_PAGE) },
          signal,
        );
        for (const event of page) {
          after = event.seq;
          left -= 1;
          const line: LogLine = {
            seq: Number(event.seq),
            type: event.type,
            v: event.v,
            at: event.at.toISOString(),
            ...(event.session === undefined ? {} : { session: event.session }),
            ...(event.turn === undefined ? {} : { turn: event.turn }),
            ...(event.execution === undefined ? {} : { execution: event.execution }),
            ...(event.actor === undefined ? {} : { actor: event.actor }),
            payload: event.type === 'execution.done' ? filesOnly(event.payload) : event.payload,
          };
          yield Buffer.from(`${JSON.stringify(line)}\n`);
        }
        if (page.length < LOG_PAGE) return;
      }
    })(),
  );
}

/** What a command printed is not for those who may only look at files. */
function filesOnly(payload: unknown): unknown {
  if (typeof payload !== 'object' || payload === null) return {};
  return Object.fromEntries(
    Object.entries(payload).filter(([key]) =>
      ['files', 'refused', 'conflicts', 'fromVersion', 'toVersion'].includes(key),
    ),
  );
}
