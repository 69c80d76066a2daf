/** File contents on their way to a sandbox, as it asks for them. */
import type { WorkspaceRow } from '../store/rows.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { Session } from './session.ts';

/** Only what this workspace has; anything else is "not found", whoever has it. */
export async function giveContent(
  store: WorkspaceStore,
  { id, tenant }: WorkspaceRow,
  session: Session,
  sha256: Buffer,
): Promise<void> {
  const none = (error: string) => session.sendContent({ sha256, offset: 0n, data: Buffer.alloc(0), last: true, error });
  try {
    if (!(await store.knownHashes(id, [sha256])).has(sha256.toString('hex'))) return await none('not found');
    let offset = 0n;
    let held: Buffer | undefined;
    for await (const piece of store.readBlob(tenant, sha256)) {
      if (held !== undefined) {
        await session.sendContent({ sha256, offset, data: held, last: false, error: '' });
        offset += BigInt(held.length);
      }
      held = piece;
    }
    await session.sendContent({ sha256, offset, data: held ?? Buffer.alloc(0), last: true, error: '' });
  } catch (error) {
    if (!session.signal.aborted) await none(error instanceof Error ? error.message : 'it could not be read');
  }
}
