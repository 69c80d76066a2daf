/** `Write` of the turn controller's API: from the wire to one write of the owner. */
import type { ServerReadableStream } from '@grpc/grpc-js';
import type { WriteChange, WriteHead, WriteRequest, WriteResponse } from '../../proto/gen/lathe/turns/v1/turns.ts';
import { canonicalPath, escapeName } from '../../proto/paths.ts';
import { PermanentError } from '../errors.ts';
import type { Ownership } from '../sandboxes/ownership.ts';
import type { Writer } from '../sandboxes/writer.ts';
import type { Write } from '../files/plan-write.ts';
import type { Origin, WorkspaceRow } from '../store/rows.ts';

const ORIGINS: readonly string[] = ['api', 'import', 'restore', 'seed'] satisfies Origin[];
const KINDS: readonly string[] = ['regular', 'symlink', 'directory', 'deleted'] satisfies Write['kind'][];
/** Changes and contents of one write that are held at once. */
const MAX_CHANGES = 500_000;
const MAX_INLINE_BYTES = 64 * 1024 * 1024;

/** @throws PermanentError for what can't be asked, and whatever the writer throws */
export async function serveWrite(
  deps: Readonly<{
    ownership: Ownership;
    writer: Writer;
    find: (ref: WriteHead['workspace'], signal: AbortSignal) => Promise<WorkspaceRow>;
  }>,
  call: ServerReadableStream<WriteRequest, WriteResponse>,
  signal: AbortSignal,
): Promise<WriteResponse> {
  let head: WriteHead | undefined;
  const writes: (Write & { content?: Buffer })[] = [];
  let inlineBytes = 0;
  for await (const { message } of call as AsyncIterable<WriteRequest>) {
    if (message?.$case === 'head') head = message.value;
    else if (message?.$case === 'changes') {
      for (const change of message.value.changes) {
        writes.push(writeOf(change));
        inlineBytes += change.inline?.length ?? 0;
      }
      if (writes.length > MAX_CHANGES || inlineBytes > MAX_INLINE_BYTES)
        throw new PermanentError(
          'TooManyFiles',
          `one write takes at most ${MAX_CHANGES} changes and ${MAX_INLINE_BYTES} bytes; write in several`,
        );
    }
  }
  if (head === undefined || !ORIGINS.includes(head.origin))
    throw new PermanentError('BadRequest', 'a write begins with its head');
  const owned = await deps.ownership.acquire(await deps.find(head.workspace, signal), signal);
  if ('redirect' in owned) return { message: { $case: 'redirect', value: { address: owned.redirect } } };
  const { version, committed, files, refused } = await deps.writer(
    owned,
    {
      origin: head.origin as Origin,
      ...(head.actor === '' ? {} : { actor: head.actor }),
      ...(head.idempotencyKey === ''
        ? {}
        : { idempotency: { key: head.idempotencyKey, requestSha256: Buffer.from(head.requestSha256) } }),
      dryRun: head.dryRun,
      allOrNothing: head.allOrNothing,
      mayDelete: head.mayDelete,
      writes,
    },
    signal,
  );
  return {
    message: {
      $case: 'written',
      value: { version, committed, ...files, paths: [...files.paths], refused: [...refused] },
    },
  };
}

function writeOf(change: WriteChange): Write & { content?: Buffer } {
  const path = canonicalPath(change.path);
  if ('refused' in path) throw new PermanentError('PathRefused', path.refused);
  if (path.path !== change.path || !KINDS.includes(change.kind))
    throw new PermanentError('PathRefused', `${escapeName(change.path)} is not in its one form`);
  return {
    path: change.path,
    kind: change.kind as Write['kind'],
    size: Number(change.size),
    mustExist: change.mustExist,
    recursive: change.recursive,
    ...(change.executable === undefined ? {} : { executable: change.executable }),
    ...(change.sha256.length === 0 ? {} : { sha256: Buffer.from(change.sha256) }),
    ...(change.kind === 'symlink' ? { target: change.target } : {}),
    ...(change.inline === undefined ? {} : { content: Buffer.from(change.inline) }),
    ...(change.ifMatch === undefined
      ? {}
      : { ifMatch: change.ifMatch.length === 0 ? ('absent' as const) : Buffer.from(change.ifMatch) }),
  };
}
