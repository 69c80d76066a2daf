/** Large files in parts of at most 8 MiB; what is sent twice is stored once, what is not completed is gone after a day. */
import { API_VERSION, PART_BYTES, type Upload } from '../../proto/live/types.ts';
import { PermanentError } from '../errors.ts';
import { parseQuantity } from '../../crds/quantity.ts';
import type { UploadRow } from '../store/api-store.ts';
import { answerJson, bodyOf, flagOf, idempotencyOf, ifMatchOf, numberOf, pathOf, type Call } from './call.ts';
import { answerWritten, change, write } from './writes.ts';

/** No path of a file begins without a slash. */
const IMPORT = 'import';
const EXPORT_FACTOR = 16;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

export async function beginUpload(call: Call): Promise<void> {
  refuseDryRun(call);
  const { store, workspace, identity, signal } = call;
  answerJson(call, uploadOf(await store.createUpload(workspace.id, pathOf(call.query), identity.user, signal)), 201);
}

/** Of a whole export; what it is is looked at when it is there. */
export async function beginImport(call: Call): Promise<void> {
  refuseDryRun(call);
  const { store, workspace, identity, signal } = call;
  answerJson(call, uploadOf(await store.createUpload(workspace.id, IMPORT, identity.user, signal)), 201);
}

export async function showUpload(call: Call): Promise<void> {
  answerJson(call, uploadOf(await findUpload(call)));
}

export async function putUpload(call: Call): Promise<void> {
  refuseDryRun(call);
  const upload = await findUpload(call);
  const offset = numberOf(call.query, 'offset') ?? Number(upload.bytes);
  const { maxFileSize, maxTotalSize } = call.workspace.effective.files;
  // An export has old contents too.
  const limit =
    upload.path === IMPORT ? (parseQuantity(maxTotalSize) ?? 0) * EXPORT_FACTOR : (parseQuantity(maxFileSize) ?? 0);
  const maxOpenBytes = Math.max(limit, parseQuantity(maxTotalSize) ?? 0);
  const data = await bodyOf(call, PART_BYTES);
  if (offset + data.length > limit)
    throw new PermanentError(
      'FileTooLarge',
      `with this part it would have ${offset + data.length} bytes, at most ${limit} are taken here (files.maxFileSize is ${maxFileSize}, maxTotalSize ${maxTotalSize})`,
    );
  const bytes = await call.store.putPart(call.workspace.id, upload.id, offset, data, maxOpenBytes, call.signal);
  answerJson(call, { ...uploadOf(upload), offset: bytes });
}

export async function completeUpload(call: Call): Promise<void> {
  const { store, workspace, signal } = call;
  const idempotency = idempotencyOf(call, '');
  // It was completed, and only the answer was lost.
  const before = idempotency === undefined ? undefined : await store.answered(workspace, idempotency.key, signal);
  const upload = before === undefined ? await findUpload(call) : undefined;
  const executable = flagOf(call.query, 'executable');
  const { sha256, size } =
    upload === undefined
      ? { sha256: Buffer.alloc(32), size: 0 }
      : await store.putBlobStream(workspace.tenant, store.readUpload(upload.id, signal), signal);
  const expected = call.query.get('sha256');
  if (upload !== undefined && expected !== null && expected !== sha256.toString('hex'))
    throw new PermanentError(
      'Conflict',
      `what arrived has the hash ${sha256.toString('hex')}, not ${expected}; send it again`,
    );
  const changes = [
    change(upload?.path ?? '/', 'regular', {
      size: BigInt(size),
      sha256,
      ...ifMatchOf(call),
      ...(executable === undefined ? {} : { executable }),
    }),
  ];
  const written = await write(call, { changes: upload === undefined ? [] : changes, idempotency });
  if (upload !== undefined && written.committed) await store.dropUpload(workspace.id, upload.id, signal);
  answerWritten(call, written, true);
}

export async function dropUpload(call: Call): Promise<void> {
  refuseDryRun(call);
  const { id } = await findUpload(call);
  await call.store.dropUpload(call.workspace.id, id, call.signal);
  call.response.writeHead(204).end();
}

/** Until it is completed an upload changes nothing that a dry run could tell of. */
function refuseDryRun({ query }: Call): void {
  if (flagOf(query, 'dryRun') === true)
    throw new PermanentError('BadRequest', 'of an upload only its completion can be a dry run');
}

export async function findUpload({ store, workspace, query, signal }: Call): Promise<UploadRow> {
  const id = query.get('upload') ?? '';
  const row = UUID.test(id) ? await store.getUpload(workspace.id, id, signal) : undefined;
  if (row === undefined)
    throw new PermanentError('NotFound', `there is no such upload; it was completed, dropped, or is over 24 hours old`);
  return row;
}

function uploadOf(row: UploadRow): Upload {
  return {
    kind: 'Upload',
    apiVersion: API_VERSION,
    id: row.id,
    path: row.path,
    offset: Number(row.bytes),
    partBytes: PART_BYTES,
    expiresAt: row.expires_at.toISOString(),
  };
}
