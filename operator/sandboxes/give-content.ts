/** File contents on their way to a sandbox, as it asks for them. */
import type { Want } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { WorkspaceRow } from '../store/rows.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { Session } from './session.ts';

/** Read at once where they are small: 4 MiB at most. */
const SMALL_AT_ONCE = 16;

/** In the order asked. Only what this workspace has; anything else is "not found", whoever has it. */
export async function giveContents(
  store: WorkspaceStore,
  workspace: WorkspaceRow,
  session: Session,
  { sha256: asked, from }: Want,
): Promise<void> {
  const hashes = asked.map((hash) => Buffer.from(hash));
  for (let at = 0; at < hashes.length && !session.signal.aborted; at += SMALL_AT_ONCE) {
    const some = hashes.slice(at, at + SMALL_AT_ONCE);
    try {
      const known = await store.knownHashes(workspace.id, some);
      const ours = some.filter((hash) => known.has(hash.toString('hex')));
      const small = await store.readSmallBlobs(workspace.tenant, ours);
      for (const [i, sha256] of some.entries()) {
        const hex = sha256.toString('hex');
        const content = small.get(hex);
        const offset = Number(from[at + i] ?? 0n);
        if (!known.has(hex)) await session.sendContent(refusal(sha256, 'not found'));
        else if (content === undefined) await giveLarge(store, workspace.tenant, session, sha256, offset);
        else {
          const data = content.subarray(Math.min(offset, content.length));
          await session.sendContent({
            sha256,
            offset: BigInt(content.length - data.length),
            data,
            last: true,
            error: '',
          });
        }
      }
    } catch (error) {
      if (session.signal.aborted) return;
      const why = error instanceof Error ? error.message : 'it could not be read';
      for (const sha256 of some) await session.sendContent(refusal(sha256, why));
    }
  }
}

async function giveLarge(
  store: WorkspaceStore,
  tenant: string,
  session: Session,
  sha256: Buffer,
  from: number,
): Promise<void> {
  let offset = BigInt(from);
  let held: Buffer | undefined;
  for await (const piece of store.readBlob(tenant, sha256, session.signal, { from, to: Number.MAX_SAFE_INTEGER })) {
    if (held !== undefined) {
      await session.sendContent({ sha256, offset, data: held, last: false, error: '' });
      offset += BigInt(held.length);
    }
    held = piece;
  }
  await session.sendContent({ sha256, offset, data: held ?? Buffer.alloc(0), last: true, error: '' });
}

function refusal(sha256: Buffer, error: string) {
  return { sha256, offset: 0n, data: Buffer.alloc(0), last: true, error };
}
