/** The one way of the live API to write: contents as blobs, then one write of the owner. */
import type { WriteChange, Written } from '../../proto/gen/lathe/turns/v1/turns.ts';
import { API_VERSION, type WriteResult } from '../../proto/live/types.ts';
import { PermanentError } from '../errors.ts';
import type { Origin } from '../store/rows.ts';
import { answerJson, flagOf, type Call } from './call.ts';

/** What goes along in the request to the owner; larger contents are blobs before. */
const INLINE_BYTES = 16 * 1024;

export type Asked = Readonly<{
  origin?: Origin;
  changes: readonly WriteChange[];
  idempotency: { key: string; requestSha256: Buffer } | undefined;
  dryRun?: boolean;
  allOrNothing?: boolean;
  mayDelete?: boolean;
}>;

/** Whatever is not named is as it is, or nothing. */
export function change(path: string, kind: WriteChange['kind'], more: Partial<WriteChange> = {}): WriteChange {
  return { path, kind, size: 0n, sha256: Buffer.alloc(0), target: '', mustExist: false, recursive: false, ...more };
}

/** A regular file of this content; stored first where it is not small. */
export async function fileChange(
  { store, workspace, signal }: Call,
  path: string,
  content: Buffer,
  more: Partial<WriteChange>,
  dryRun: boolean,
): Promise<WriteChange> {
  if (content.length <= INLINE_BYTES) return change(path, 'regular', { inline: content, ...more });
  const [sha256] = dryRun ? [] : await store.putBlobs(workspace.tenant, [content], signal);
  return change(path, 'regular', { size: BigInt(content.length), sha256: sha256 ?? Buffer.alloc(0), ...more });
}

export async function write(call: Call, asked: Asked): Promise<Written> {
  const { workspace, identity, owner, signal } = call;
  const dryRun = asked.dryRun ?? flagOf(call.query, 'dryRun') ?? false;
  const deletes = asked.changes.some((c) => c.kind === 'deleted');
  return await owner.write(
    {
      workspace: { namespace: workspace.namespace, name: workspace.name },
      actor: identity.user,
      origin: asked.origin ?? 'api',
      idempotencyKey: dryRun ? '' : (asked.idempotency?.key ?? ''),
      requestSha256: asked.idempotency?.requestSha256 ?? Buffer.alloc(0),
      dryRun,
      allOrNothing: asked.allOrNothing ?? flagOf(call.query, 'allOrNothing') ?? false,
      mayDelete: asked.mayDelete ?? (deletes && (await call.mayApprove())),
    },
    asked.changes,
    signal,
  );
}

/** @param single a write of one path: that it was refused is an error then */
export function answerWritten(call: Call, written: Written, single = false): void {
  const [refused] = written.refused;
  if (single && refused !== undefined) throw new PermanentError(refused.reason, refused.message);
  const result: WriteResult = {
    kind: 'WriteResult',
    apiVersion: API_VERSION,
    version: Number(written.version),
    committed: written.committed,
    dryRun: flagOf(call.query, 'dryRun') ?? false,
    files: { created: written.created, changed: written.changed, deleted: written.deleted, paths: written.paths },
    refused: written.refused,
  };
  answerJson(call, result, single && written.created > 0 && written.committed ? 201 : 200);
}
