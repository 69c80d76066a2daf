/** Makes a sandbox's tree equal the head, by sending what differs; contents follow as the guest asks for them. */
import type { Entry } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { TransientError } from '../errors.ts';
import { deletedEntry, entryOf } from '../files/diff.ts';
import type { FileEntry } from '../store/rows.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { OwnedWorkspace } from './ownership.ts';
import type { Meeting, Session } from './session.ts';

/** Below the frame limit of 256 KiB, with room for names. */
const PAGE_BYTES = 128 * 1024;
const INLINE_BYTES = 16 * 1024;

/** Resolves when the guest has said that it is there. @throws TransientError when it could not, or went away */
export async function syncTo(
  store: WorkspaceStore,
  owned: OwnedWorkspace,
  meeting: Meeting,
  session: Session,
  signal: AbortSignal,
): Promise<void> {
  const from = session.synced();
  const to = owned.head;
  if (from === to) return;
  const until = AbortSignal.any([signal, session.signal]);
  const ignored = [...owned.workspace.effective.files.ignored];
  const pages = from === undefined ? wholeTree(store, owned, until) : difference(store, owned, from, until);
  const send = (entries: Entry[], last: boolean) =>
    session.send({
      $case: 'sync',
      value: { fromVersion: from ?? 0n, toVersion: to, full: from === undefined, entries, last, ignored },
    });
  for await (const page of pages) send(page, false);
  send([], true);
  for (;;) {
    const { version, error } = await meeting.synced.next(until);
    if (version !== to) continue;
    if (error !== '') {
      session.setSynced(undefined);
      throw new TransientError('SandboxLost', `the sandbox could not be brought to version ${to}: ${error}`);
    }
    session.setSynced(to);
    return;
  }
}

async function* wholeTree(store: WorkspaceStore, owned: OwnedWorkspace, signal: AbortSignal): AsyncIterable<Entry[]> {
  for await (const page of store.tree(owned.workspace.id, undefined, signal))
    yield* pagesOf(store, owned, page, signal);
}

async function* difference(
  store: WorkspaceStore,
  owned: OwnedWorkspace,
  from: bigint,
  signal: AbortSignal,
): AsyncIterable<Entry[]> {
  const changes = await store.changesBetween(owned.workspace.id, from, owned.head, signal);
  const gone = changes.filter((change) => change.after === undefined).map((change) => deletedEntry(change.path));
  if (gone.length > 0) yield gone;
  yield* pagesOf(
    store,
    owned,
    changes.flatMap((change) => change.after ?? []),
    signal,
  );
}

/** Entries with small contents in them, each page within a frame. */
export async function* pagesOf(
  store: WorkspaceStore,
  owned: OwnedWorkspace,
  files: readonly FileEntry[],
  signal: AbortSignal,
): AsyncIterable<Entry[]> {
  let page: FileEntry[] = [];
  let bytes = 0;
  for (const file of files) {
    const size = file.path.length * 2 + (isSmall(file) ? Number(file.size) : 0) + 128;
    if (bytes + size > PAGE_BYTES && page.length > 0) {
      yield await withContents(page);
      page = [];
      bytes = 0;
    }
    page.push(file);
    bytes += size;
  }
  if (page.length > 0) yield await withContents(page);

  async function withContents(of: readonly FileEntry[]): Promise<Entry[]> {
    const hashes = of.flatMap((file) => (isSmall(file) ? [file.sha256] : []));
    const contents =
      hashes.length === 0
        ? new Map<string, Buffer>()
        : await store.readSmallBlobs(owned.workspace.tenant, hashes, signal);
    return of.map((file) => entryOf(file, isSmall(file) ? contents.get(file.sha256.toString('hex')) : undefined));
  }
}

function isSmall(file: FileEntry): file is FileEntry & { sha256: Buffer } {
  return file.kind === 'regular' && file.sha256 !== null && file.size <= INLINE_BYTES;
}
