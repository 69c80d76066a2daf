/**
 * A write that no command makes: by the live API, a restore, an import. The same guards and the same commit as a diff's,
 * by the owner, without a pod. It does not wait for a command that runs: of a path that both change the first stays.
 */
import { PermanentError } from '../errors.ts';
import { countChanges } from '../files/diff.ts';
import { runGuards, type Refusal } from '../files/guards.ts';
import { planWrite, type Write } from '../files/plan-write.ts';
import { ChangedMeanwhile, FenceLost } from '../store/database.ts';
import { parentOf } from '../store/files.ts';
import type { Change, FileCounts, FileEntry, Origin } from '../store/rows.ts';
import type { Ground, WorkspaceStore } from '../store/workspace-store.ts';
import type { OwnedWorkspace, Ownership } from './ownership.ts';

export type WriteRequest = Readonly<{
  origin: Origin;
  actor?: string;
  idempotency?: Readonly<{ key: string; requestSha256: Buffer }>;
  dryRun: boolean;
  allOrNothing: boolean;
  /** Deletions are not held. */
  mayDelete: boolean;
  writes: readonly (Write & Readonly<{ content?: Buffer }>)[];
}>;
export type WriteOutcome = Readonly<{
  version: bigint;
  committed: boolean;
  files: FileCounts;
  refused: readonly Refusal[];
}>;
export type Writer = (owned: OwnedWorkspace, request: WriteRequest, signal: AbortSignal) => Promise<WriteOutcome>;

/** How often a commit that came between makes a write look again. */
const ATTEMPTS = 5;
/** Told of at most; the rest is counted in the last one. */
const REFUSED_SHOWN = 100;

export function createWriter(deps: {
  store: WorkspaceStore;
  ownership: Ownership;
  /** The workspace's log has grown. */
  onEvents?: (workspace: string) => void;
}): Writer {
  const { store, ownership } = deps;

  return (owned, request, signal) =>
    ownership.using(owned, () =>
      owned.oneWrite(async () => {
        try {
          return await write(owned, request, AbortSignal.any([signal, owned.signal]));
        } catch (error) {
          if (error instanceof FenceLost) ownership.lost(owned);
          throw error;
        }
      }),
    );

  async function write(owned: OwnedWorkspace, request: WriteRequest, signal: AbortSignal): Promise<WriteOutcome> {
    refuseUnseeded(owned);
    const writes = await stored(owned, request, signal);
    for (let attempt = 1; ; attempt += 1) {
      const before = await answered(owned, request, signal);
      if (before !== undefined) return before;
      try {
        return await once(owned, request, writes, signal);
      } catch (error) {
        if (!(error instanceof ChangedMeanwhile) || attempt === ATTEMPTS) throw error;
      }
    }
  }

  async function once(
    owned: OwnedWorkspace,
    request: WriteRequest,
    writes: readonly Write[],
    signal: AbortSignal,
  ): Promise<WriteOutcome> {
    const { workspace } = owned;
    const ground = await store.ground(
      workspace.id,
      writes.map((w) => w.path),
      signal,
    );
    const below = await removed(workspace.id, writes, ground, workspace.effective.files.maxFiles, signal);
    const plan = planWrite(writes, ground, below);
    const at = new Map(ground.entries);
    for (const entries of below.values()) for (const entry of entries) at.set(entry.path, entry);
    const before = {
      files: Number(ground.files),
      bytes: Number(ground.bytes),
      sizeOf: (path: string) => (at.has(path) ? Number(at.get(path)?.size) : undefined),
    };
    const verdict = runGuards(plan.changes, before, workspace.effective.files, { mayDelete: request.mayDelete });
    const refused = [...plan.refused, ...verdict.refused];
    const dropped = request.allOrNothing && refused.length > 0;
    const kept = dropped ? [] : [...verdict.commit, ...(await leftEmpty(request, workspace.id, plan, verdict.commit))];
    const files = countChanges(kept, at);
    const outcome = { files, refused: shown(refused) };
    if (request.dryRun) return { ...outcome, version: ground.head, committed: false };
    if (kept.length === 0 && request.idempotency === undefined)
      return { ...outcome, version: ground.head, committed: false };
    const { head } = await store.commit(
      owned.lease,
      {
        origin: request.origin,
        atomic: true,
        changes: kept,
        events: kept.length === 0 ? [] : [eventOf(request, files, refused.length)],
        ...(request.idempotency === undefined ? {} : { idempotency: { ...request.idempotency, response: outcome } }),
      },
      signal,
    );
    owned.moved(head);
    if (kept.length > 0) deps.onEvents?.(workspace.id);
    return { ...outcome, version: head, committed: kept.length > 0 };
  }

  /** Contents that came along, as blobs. */
  async function stored(owned: OwnedWorkspace, request: WriteRequest, signal: AbortSignal): Promise<readonly Write[]> {
    const inline = request.writes.flatMap((w) => (w.content === undefined ? [] : [w.content]));
    if (inline.length === 0 || request.dryRun)
      return request.writes.map((w) => (w.content === undefined ? w : { ...w, size: w.content.length }));
    const hashes = await store.putBlobs(owned.workspace.tenant, inline, signal);
    let next = 0;
    return request.writes.map(({ content, ...w }) => {
      if (content === undefined) return w;
      const sha256 = hashes[next++];
      return { ...w, size: content.length, ...(sha256 === undefined ? {} : { sha256 }) };
    });
  }

  async function answered(
    owned: OwnedWorkspace,
    { idempotency }: WriteRequest,
    signal: AbortSignal,
  ): Promise<WriteOutcome | undefined> {
    if (idempotency === undefined) return undefined;
    const found = await store.answered(owned.workspace, idempotency.key, signal);
    if (found === undefined) return undefined;
    if (!found.requestSha256.equals(idempotency.requestSha256))
      throw new PermanentError('Conflict', 'this Idempotency-Key was used for another request; take a new one');
    const response = found.response as Omit<WriteOutcome, 'version'> & { version: number };
    return { ...response, version: BigInt(response.version) };
  }

  async function removed(
    workspace: string,
    writes: readonly Write[],
    ground: Ground,
    maxFiles: number,
    signal: AbortSignal,
  ): Promise<ReadonlyMap<string, readonly FileEntry[]>> {
    const below = new Map<string, readonly FileEntry[]>();
    for (const { path, kind, recursive } of writes)
      if (kind === 'deleted' && recursive === true && ground.folders.has(path))
        below.set(path, await store.below(workspace, path, maxFiles * 2 + 1_000, signal));
    return below;
  }

  /** A folder stays when the last file in it is removed, as it does on a disk; a tree that is put back says itself what it has. */
  async function leftEmpty(
    { origin }: WriteRequest,
    workspace: string,
    { perhapsEmpty }: { perhapsEmpty: readonly string[] },
    commit: readonly Change[],
  ): Promise<readonly Change[]> {
    if (origin !== 'api' || perhapsEmpty.length === 0) return [];
    const gone = commit.filter((change) => change.op === 'delete').map((change) => change.path);
    // Only of what really goes: a refused deletion leaves its folder filled.
    const parents = new Set(gone.map(parentOf));
    const folders = await store.emptied(
      workspace,
      perhapsEmpty.filter((folder) => parents.has(folder) || gone.some((path) => path.startsWith(`${folder}/`))),
      gone,
    );
    return folders.map((path) => ({ path, op: 'put', kind: 'directory', executable: false, size: 0, base: 0n }));
  }
}

function refuseUnseeded({ workspace }: OwnedWorkspace): void {
  const { namespace, name, seed_state: state, seed_error: error } = workspace;
  if (state === 'None' || state === 'Done') return;
  throw new PermanentError(
    'Conflict',
    state === 'Failed'
      ? `the seed of workspace ${namespace}/${name} failed (${error ?? 'no reason is known'}); make a new Workspace`
      : `the seed of workspace ${namespace}/${name} is not in yet; wait for its condition Ready`,
  );
}

function eventOf({ origin, actor }: WriteRequest, files: FileCounts, refused: number) {
  const { created, changed, deleted, paths } = files;
  return {
    type: 'files.committed',
    v: 1,
    ...(actor === undefined ? {} : { actor }),
    payload: { origin, created, changed, deleted, paths, ...(refused === 0 ? {} : { refused }) },
  };
}

function shown(refused: readonly Refusal[]): readonly Refusal[] {
  if (refused.length <= REFUSED_SHOWN) return refused;
  const rest = refused.length - REFUSED_SHOWN + 1;
  return [
    ...refused.slice(0, REFUSED_SHOWN - 1),
    { path: '', reason: refused[REFUSED_SHOWN - 1]?.reason ?? 'Conflict', message: `and ${rest} more` },
  ];
}
