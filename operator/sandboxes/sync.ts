/** Makes a sandbox's tree equal the head, by sending what differs; contents follow as the guest asks for them. */
import type { Entry } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { TransientError } from '../errors.ts';
import { deletedEntry, entryOf } from '../files/diff.ts';
import type { FileEntry } from '../store/rows.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { OwnedWorkspace } from './ownership.ts';
import type { Session } from './session.ts';

/** Below the frame limit of 256 KiB, with room for names. */
const PAGE_BYTES = 128 * 1024;
const INLINE_BYTES = 16 * 1024;
/** A guest compares and writes for a while without a word, but not for so long. */
const SILENT_MS = 300_000;
const LOOK_MS = 5_000;

/** Resolves when the guest has said that it is there. @throws TransientError when it could not, or went away */
export async function syncTo(
  store: WorkspaceStore,
  owned: OwnedWorkspace,
  session: Session,
  signal: AbortSignal,
): Promise<void> {
  const from = session.synced();
  const to = owned.head;
  if (from === to) return;
  using silence = whenSilent(session);
  const until = AbortSignal.any([signal, session.guestSignal(), silence.signal]);
  const ignored = [...owned.workspace.effective.files.ignored];
  const pages = from === undefined ? wholeTree(store, owned, session, until) : difference(store, owned, from, until);
  const send = (entries: Entry[], last: boolean) =>
    session.send({
      $case: 'sync',
      value: { fromVersion: from ?? 0n, toVersion: to, full: from === undefined, entries, last, ignored },
    });
  session.answers.clear();
  for await (const page of pages) {
    send(page, false);
    await orAborted(session.drained(), until);
  }
  send([], true);
  for (;;) {
    const { version, error } = await session.answers.next(until);
    if (version !== to) continue;
    if (error !== '') {
      session.setSynced(undefined);
      throw new TransientError('SandboxLost', `the sandbox could not be brought to version ${to}: ${error}`);
    }
    session.setSynced(to);
    return;
  }
}

/** What is on the volume is asked for only where it is not what it should be; an empty one needs everything. */
async function* wholeTree(
  store: WorkspaceStore,
  owned: OwnedWorkspace,
  session: Session,
  signal: AbortSignal,
): AsyncIterable<Entry[]> {
  const inline = session.treeIsEmpty();
  for await (const page of store.tree(owned.workspace.id, undefined, signal))
    yield* pagesOf(store, owned, page, signal, inline);
}

async function* difference(
  store: WorkspaceStore,
  owned: OwnedWorkspace,
  from: bigint,
  signal: AbortSignal,
): AsyncIterable<Entry[]> {
  const changes = await store.changesBetween(owned.workspace.id, from, owned.head, signal);
  const gone = changes.filter((change) => change.after === undefined).map((change) => deletedEntry(change.path));
  yield* cut(gone);
  const there = changes.flatMap((change) => change.after ?? []);
  yield* pagesOf(store, owned, there, signal);
}

/** Entries, with small contents in them, each page within a frame. */
export async function* pagesOf(
  store: WorkspaceStore,
  owned: OwnedWorkspace,
  files: readonly FileEntry[],
  signal: AbortSignal,
  inline = true,
): AsyncIterable<Entry[]> {
  const isInline = (file: FileEntry) =>
    inline && file.kind === 'regular' && file.size <= INLINE_BYTES && file.sha256 !== null;
  const fill = async (page: readonly FileEntry[]): Promise<Entry[]> => {
    const hashes = page.filter(isInline).flatMap((file) => file.sha256 ?? []);
    const contents = await store.readSmallBlobs(owned.workspace.tenant, hashes, signal);
    return page.map((file) =>
      entryOf(file, isInline(file) ? contents.get(file.sha256?.toString('hex') ?? '') : undefined),
    );
  };
  // One page is read while the one before it is sent.
  let next: Promise<Entry[]> | undefined;
  for (const page of cut(files, (file) => (isInline(file) ? Number(file.size) : 0))) {
    const before = next;
    next = fill(page);
    next.catch(() => undefined);
    if (before !== undefined) yield await before;
  }
  if (next !== undefined) yield await next;
}

/** Each at least one item, and within a frame. */
export function* cut<T extends Readonly<{ path: string; target?: string | null }>>(
  items: readonly T[],
  contentBytes: (item: T) => number = () => 0,
): Iterable<T[]> {
  let page: T[] = [];
  let bytes = 0;
  for (const item of items) {
    const size = (item.path.length + (item.target?.length ?? 0)) * 3 + contentBytes(item) + 128;
    if (bytes + size > PAGE_BYTES && page.length > 0) {
      yield page;
      page = [];
      bytes = 0;
    }
    page.push(item);
    bytes += size;
  }
  if (page.length > 0) yield page;
}

function whenSilent(session: Session): Disposable & { signal: AbortSignal } {
  const abort = new AbortController();
  const timer = setInterval(() => {
    if (session.silentForMs() < SILENT_MS) return;
    abort.abort(new TransientError('SandboxLost', `the sandbox was silent for ${SILENT_MS} ms while it was synced`));
    session.restart('silent while it was synced');
  }, LOOK_MS);
  return { signal: abort.signal, [Symbol.dispose]: () => clearInterval(timer) };
}

function orAborted(work: Promise<void>, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason as Error);
    if (signal.aborted) return abort();
    signal.addEventListener('abort', abort, { once: true });
    void work.then(resolve, reject).finally(() => signal.removeEventListener('abort', abort));
  });
}
