/** From what a sandbox offers to what may be committed: bases, guards, contents. */
import type { Entry, TreeOffer } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { changesOf, countChanges, deletedEntry } from '../files/diff.ts';
import { runGuards, type Refusal } from '../files/guards.ts';
import type { Change, FileCounts } from '../store/rows.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { OwnedWorkspace } from './ownership.ts';
import type { Meeting, Session } from './session.ts';
import { pagesOf } from './sync.ts';

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
  session: Session | undefined;
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
/** Contents that are put into the store at once. */
const BATCH_BYTES = 4 * 1024 * 1024;

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
  const { missing } = await takeContents(from, offered, verdict.commit, signal);
  const commit = verdict.commit.filter((change) => !missing.has(change.path));
  const gone = [...missing].map((path) => ({
    path,
    reason: 'Conflict',
    message: `${path} changed or vanished while it was taken; it is left at its old version`,
  }));
  const refused = [...verdict.refused, ...gone];
  return {
    base,
    changes: commit,
    files: countChanges(commit, at),
    refused: [...skipped, ...refused].slice(0, REFUSED_SHOWN),
    putBack: changes.filter((change) => !commit.includes(change)).map((change) => change.path),
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
  if (absent.length > 0) yield absent;
  yield* pagesOf(store, owned, [...at.values()], AbortSignal.timeout(60_000));
}

/** Stores what the store lacks. Bytes are skipped only for hashes that a version of this very workspace has. */
async function takeContents(
  from: From,
  offered: readonly Entry[],
  changes: readonly Change[],
  signal: AbortSignal,
): Promise<{ missing: ReadonlySet<string> }> {
  const { store, owned, meeting, session, execution } = from;
  const regular = changes.flatMap((c) =>
    c.op === 'put' && c.kind === 'regular' && c.sha256 !== undefined
      ? [{ path: c.path, size: c.size, sha256: c.sha256 }]
      : [],
  );
  const known = await store.knownHashes(
    owned.workspace.id,
    regular.map((c) => c.sha256),
    signal,
  );
  const inline = new Map(
    offered.flatMap((entry) => (entry.inline === undefined ? [] : [[entry.path, Buffer.from(entry.inline)] as const])),
  );
  const missing = new Set<string>();
  let batch: Buffer[] = [];
  let expected: { path: string; sha256: Buffer }[] = [];
  let bytes = 0;
  const flush = async () => {
    const hashes = await store.putBlobs(owned.workspace.tenant, batch, signal);
    expected.forEach(({ path, sha256 }, i) => {
      // An inline content that is not what its hash says: the hash proves nothing, so the path is left out.
      if (hashes[i]?.equals(sha256) !== true) missing.add(path);
    });
    batch = [];
    expected = [];
    bytes = 0;
  };
  for (const { path, size, sha256 } of regular) {
    if (known.has(sha256.toString('hex'))) continue;
    const content =
      inline.get(path) ??
      (session === undefined ? undefined : await meeting.receive(session, execution, sha256, size, signal));
    if (content === undefined || content.length !== size) {
      missing.add(path);
      continue;
    }
    batch.push(content);
    expected.push({ path, sha256 });
    bytes += content.length;
    if (bytes >= BATCH_BYTES) await flush();
  }
  if (batch.length > 0) await flush();
  return { missing };
}
