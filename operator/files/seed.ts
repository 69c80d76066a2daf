/** What a workspace holds at first: through the same guards and the same commit as everything else (EX2, FW25). */
import { normalisePath } from '../../proto/paths.ts';
import { PermanentError } from '../errors.ts';
import type { Change, Lease } from '../store/rows.ts';
import type { SeedClaim, WorkspaceStore } from '../store/workspace-store.ts';
import { runGuards, type Refusal } from './guards.ts';

/** Commits version 1, or says in the workspace's row why not. Running it again changes nothing. */
export async function commitSeed(
  store: WorkspaceStore,
  { workspace, lease, entries }: SeedClaim,
  signal: AbortSignal,
): Promise<void> {
  const error = await seed().then(
    () => undefined,
    (e: unknown) => {
      if (e instanceof PermanentError) return e.message;
      throw e;
    },
  );
  await store.finishSeed(lease, error, signal);

  async function seed(): Promise<void> {
    const { head } = await store.head(workspace.id, signal);
    if (head > 0n) return;
    const changes: Change[] = [];
    const contents: Buffer[] = [];
    for (const entry of entries) {
      const path = normalisePath(entry.path);
      if ('refused' in path) throw new PermanentError('PathRefused', `seed: ${path.refused}`);
      contents.push(entry.content);
      changes.push({
        path: path.path,
        op: 'put',
        kind: 'regular',
        executable: entry.executable,
        size: entry.content.length,
        base: 0n,
      });
    }
    const { refused } = runGuards(changes, { files: 0, bytes: 0, sizeOf: () => undefined }, workspace.effective.files);
    if (refused.length > 0)
      throw new PermanentError(refused[0]?.reason ?? 'PathRefused', `seed: ${messageOf(refused)}`);
    const hashes = await store.putBlobs(workspace.tenant, contents, signal);
    const whole = changes.map((change, i) => ({
      ...change,
      ...(hashes[i] === undefined ? {} : { sha256: hashes[i] }),
    }));
    await commitOf(store, lease, whole, signal);
  }
}

async function commitOf(
  store: WorkspaceStore,
  lease: Lease,
  changes: readonly Change[],
  signal: AbortSignal,
): Promise<void> {
  const payload = { origin: 'seed', created: changes.length, changed: 0, deleted: 0 };
  await store.commit(lease, { origin: 'seed', changes, events: [{ type: 'files.committed', v: 1, payload }] }, signal);
}

function messageOf(refused: readonly Refusal[]): string {
  const more = refused.length > 3 ? `; and ${refused.length - 3} more` : '';
  return (
    refused
      .slice(0, 3)
      .map((r) => r.message)
      .join('; ') + more
  );
}
