/** From a diff to contents in the store: what it lacks is taken from the sandbox, and hashed on the way. */
import type { Entry } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { Change } from '../store/rows.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { OwnedWorkspace } from './ownership.ts';
import { BATCH_BYTES, batchesOf, NotHad, takeBatch, takeLarge, type Taking, type Wanted } from './take-contents.ts';

/** What is larger goes to the store as it comes, and never into memory. */
const LARGE_BYTES = 1024 * 1024;

type To = Taking & Readonly<{ store: WorkspaceStore; owned: OwnedWorkspace }>;

/**
 * Bytes are skipped only for hashes that a version of this very workspace has: existence elsewhere can't be told.
 * @returns paths whose content could not be had, or is not what was said
 */
export async function storeContents(
  to: To,
  offered: readonly Entry[],
  changes: readonly Change[],
  signal: AbortSignal,
): Promise<ReadonlySet<string>> {
  const { store, owned } = to;
  const lacking = await byHash(store, owned, changes, signal);
  const inline = new Map<string, Buffer>();
  for (const { sha256, inline: content } of offered) {
    if (content !== undefined) inline.set(Buffer.from(sha256).toString('hex'), Buffer.from(content));
  }
  const stored = new Set<string>();
  const put = async (contents: readonly Buffer[]) => {
    if (contents.length === 0) return;
    // By what they are: one that is not what its hash said is then lacking still.
    for (const hash of await store.putBlobs(owned.workspace.tenant, contents, signal)) stored.add(hash.toString('hex'));
  };
  const here = [...lacking.values()].flatMap(({ wanted }) => {
    const content = inline.get(wanted.sha256.toString('hex'));
    return content?.length === wanted.size ? [content] : [];
  });
  for (const batch of cut(here)) await put(batch);

  const wanted = [...lacking].filter(([hex]) => !inline.has(hex)).map(([, of]) => of.wanted);
  await inTurn(
    [...batchesOf(wanted.filter(({ size }) => size <= LARGE_BYTES))],
    (batch) => takeBatch(to, batch, signal),
    (contents) => put([...contents.values()]),
  );
  for (const one of wanted.filter(({ size }) => size > LARGE_BYTES)) {
    if (await storeLarge(to, one, signal)) stored.add(one.sha256.toString('hex'));
  }
  return new Set([...lacking].flatMap(([hex, { paths }]) => (stored.has(hex) ? [] : paths)));
}

async function byHash(
  store: WorkspaceStore,
  owned: OwnedWorkspace,
  changes: readonly Change[],
  signal: AbortSignal,
): Promise<Map<string, { wanted: Wanted; paths: string[] }>> {
  const all = new Map<string, { wanted: Wanted; paths: string[] }>();
  for (const change of changes) {
    if (change.op !== 'put' || change.kind !== 'regular' || change.sha256 === undefined) continue;
    const hex = change.sha256.toString('hex');
    const of = all.get(hex) ?? { wanted: { sha256: change.sha256, size: change.size }, paths: [] };
    of.paths.push(change.path);
    all.set(hex, of);
  }
  const hashes = [...all.values()].map(({ wanted }) => wanted.sha256);
  for (const hex of await store.knownHashes(owned.workspace.id, hashes, signal)) all.delete(hex);
  return all;
}

async function storeLarge(to: To, wanted: Wanted, signal: AbortSignal): Promise<boolean> {
  try {
    const pieces = takeLarge(to, wanted, signal);
    const { sha256, size } = await to.store.putBlobStream(to.owned.workspace.tenant, pieces, signal);
    return sha256.equals(wanted.sha256) && size === wanted.size;
  } catch (error) {
    if (error instanceof NotHad) return false;
    throw error;
  }
}

/** The next is made while the one before is used; no two are used at once. */
async function inTurn<A, B>(all: readonly A[], make: (item: A) => Promise<B>, use: (made: B) => Promise<void>) {
  const start = (item: A | undefined) => {
    const made = item === undefined ? undefined : make(item);
    // Whoever uses it hears of it; where an earlier one failed nobody does.
    made?.catch(() => undefined);
    return made;
  };
  let next = start(all[0]);
  for (let i = 0; next !== undefined; i += 1) {
    const made = await next;
    next = start(all[i + 1]);
    await use(made);
  }
}

function* cut(contents: readonly Buffer[]): Iterable<readonly Buffer[]> {
  let batch: Buffer[] = [];
  let bytes = 0;
  for (const content of contents) {
    batch.push(content);
    bytes += content.length;
    if (bytes < BATCH_BYTES) continue;
    yield batch;
    batch = [];
    bytes = 0;
  }
  if (batch.length > 0) yield batch;
}
