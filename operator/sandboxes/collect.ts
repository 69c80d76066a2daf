/** From what a sandbox offers to what may be committed: bases, guards, contents. */
import type { Entry, TreeOffer } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { changesOf, countChanges, deletedEntry } from '../files/diff.ts';
import { runGuards, type Refusal } from '../files/guards.ts';
import type { Change, FileCounts } from '../store/rows.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { OwnedWorkspace } from './ownership.ts';
import type { Meeting } from './meeting.ts';
import { storeContents } from './store-contents.ts';
import { cut, pagesOf } from './sync.ts';

export type Collected = Readonly<{
  /** The version that the sandbox compared its tree with. */
  base: bigint;
  changes: readonly Change[];
  files: FileCounts;
  refused: readonly Refusal[];
  /** What the sandbox has to undo. */
  putBack: readonly string[];
}>;
type From = Readonly<{
  store: WorkspaceStore;
  owned: OwnedWorkspace;
  meeting: Meeting;
  execution: string;
  offers: readonly TreeOffer[];
}>;

const NOTHING = {
  changes: [],
  files: { created: 0, changed: 0, deleted: 0, paths: [] },
  refused: [],
  putBack: [],
};
/** Told of at most; the rest is counted. */
const REFUSED_SHOWN = 100;

/** @throws TransientError SandboxLost when it went away before its contents were taken */
export async function collect(from: From, signal: AbortSignal): Promise<Collected> {
  const { store, owned, offers } = from;
  const offered = offers.flatMap((offer) => offer.changes);
  const skipped = offers
    .flatMap((offer) => offer.skipped)
    .map(({ path, reason }) => ({ path, reason: 'PathRefused', message: `${path} was left out: ${reason}` }));
  const base = offers[0]?.baseVersion ?? owned.head;
  if (offered.length === 0) return { ...NOTHING, base, refused: skipped };

  const at = await store.entriesAt(
    owned.workspace.id,
    offered.map((entry) => entry.path),
    base,
    signal,
  );
  const changes = changesOf(offered, at);
  const { files, bytes } = await store.head(owned.workspace.id, signal);
  const before = {
    files: Number(files),
    bytes: Number(bytes),
    sizeOf: (path: string) => (at.has(path) ? Number(at.get(path)?.size) : undefined),
  };
  const verdict = runGuards(changes, before, owned.workspace.effective.files);
  const missing = await storeContents(from, offered, verdict.commit, signal);
  const commit = verdict.commit.filter((change) => !missing.has(change.path));
  const gone = [...missing].map((path) => ({
    path,
    reason: 'Conflict',
    message: `${path} changed or vanished while it was taken; it is left at its old version`,
  }));
  const refused = [...verdict.refused, ...gone];
  const kept = new Set(commit);
  return {
    base,
    changes: commit,
    files: countChanges(commit, at),
    refused: [...skipped, ...refused].slice(0, REFUSED_SHOWN),
    putBack: changes.filter((change) => !kept.has(change)).map((change) => change.path),
  };
}

/** Nothing of it is committed, and everything put back. The reason is told once, by the first path. */
export function undoneBy(
  reason: string,
  message: string,
  { base, changes, refused, putBack: more }: Collected,
): Collected {
  const paths = changes.map((change) => change.path);
  const [first] = paths;
  return {
    ...NOTHING,
    base,
    refused: [...(first === undefined ? [] : [{ path: first, reason, message }]), ...refused].slice(0, REFUSED_SHOWN),
    putBack: [...paths, ...more],
  };
}

/** Pages for `settle`: these paths as the head has them. */
export async function* putBack(
  store: WorkspaceStore,
  owned: OwnedWorkspace,
  paths: readonly string[],
): AsyncIterable<Entry[]> {
  if (paths.length === 0) return;
  const at = await store.entriesAt(owned.workspace.id, paths, owned.head);
  const absent = paths.filter((path) => !at.has(path)).map(deletedEntry);
  yield* cut(absent);
  yield* pagesOf(store, owned, [...at.values()], AbortSignal.timeout(60_000));
}
