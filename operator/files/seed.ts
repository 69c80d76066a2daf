/**
 * What a workspace holds at first: from Git, an archive, another workspace or a ConfigMap, through the same guards and
 * the same commit as everything else (EX2, FW25). One try starts with nothing and leaves nothing but version 1.
 */
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { SeedSpec } from '../../crds/types.ts';
import { normalisePath } from '../../proto/paths.ts';
import { PermanentError, TransientError } from '../errors.ts';
import { FenceLost } from '../store/database.ts';
import type { Change } from '../store/rows.ts';
import type { SeedClaim, SeedEntry } from '../store/workspace-store.ts';
import { runGuards, type Refusal } from './guards.ts';
import { seedFromArchive } from './seeds/archive.ts';
import { seedFromWorkspace } from './seeds/copy.ts';
import { seedFromGit } from './seeds/git.ts';
import type { Origin, Progress, SeedDeps, SourceContext } from './seeds/source.ts';
import { limitsOf, SeedTree } from './seeds/tree.ts';

const TIMEOUT_MS = 10 * 60_000;
const REPORT_MS = 5_000;
const MAX_RETRY_MS = 60_000;
/** Of what is neither known to pass nor known to stay. */
const MAX_ATTEMPTS = 5;
const UNSURE = 'SeedFailed';

/**
 * Commits version 1; or says in the workspace's row why not, for good or until the next try. Running it again changes
 * nothing. Aborted: nothing is said, whoever claims it next starts anew. `onHead`: before any turn can be claimed.
 */
export async function runSeed(
  deps: SeedDeps,
  claim: SeedClaim,
  onHead: (head: bigint) => void,
  signal: AbortSignal,
): Promise<void> {
  const { workspace, lease } = claim;
  const { store } = deps;
  try {
    const { head } = await store.head(workspace.id, signal);
    onHead(head > 0n ? head : await commitSeed(deps, claim, signal));
  } catch (error) {
    if (signal.aborted || error instanceof FenceLost || isOfStore(error)) throw error;
    const attempt = workspace.seed_attempts + 1;
    const message = shown(error);
    if (isOver(error, attempt)) return await store.finishSeed(lease, message, signal);
    const retryAfterMs = Math.min(MAX_RETRY_MS, 1_000 * 2 ** Math.min(attempt, 10));
    await store.reportSeed(lease, { message: `waiting: ${message} (try ${attempt})`, retryAfterMs }, signal);
    return;
  }
  await store.finishSeed(lease, undefined, signal);
}

async function commitSeed(
  deps: SeedDeps,
  { workspace, lease, entries }: SeedClaim,
  signal: AbortSignal,
): Promise<bigint> {
  const { store } = deps;
  const timeoutMs = deps.timeoutMs ?? TIMEOUT_MS;
  const over = AbortSignal.timeout(timeoutMs);
  const within = AbortSignal.any([signal, over]);
  await mkdir(deps.folder, { recursive: true, mode: 0o700 });
  const folder = await mkdtemp(join(deps.folder, 'seed-'));
  const progress: Progress = { phase: 'starting' };
  const tree = new SeedTree(limitsOf(workspace.effective.files), store, workspace.tenant, within);
  const began = performance.now();
  const reporting = setInterval(() => {
    const message = said(progress, tree, performance.now() - began);
    // For people alone: what can't be said now is said at the next change.
    void store.reportSeed(lease, { message }, signal).catch(() => undefined);
  }, deps.reportMs ?? REPORT_MS);
  try {
    const context = { deps, workspace, tree, folder, progress, signal: within };
    const origin = await fill(workspace.spec.seed, entries, context);
    progress.phase = 'committing';
    const changes = await tree.finish();
    // `writable` is for commands: what they may not touch has to come from somewhere.
    const { writable: _commands, ...rules } = workspace.effective.files;
    const { refused } = runGuards(changes, { files: 0, bytes: 0, sizeOf: () => undefined }, rules);
    if (refused.length > 0) throw new PermanentError(refused[0]?.reason ?? 'PathRefused', messageOf(refused));
    const payload = { origin: 'seed', source: origin, created: countOf(changes), changed: 0, deleted: 0 };
    const events = [{ type: 'files.committed', v: 1, payload }];
    return (await store.commit(lease, { origin: 'seed', changes, events }, within)).head;
  } catch (error) {
    if (over.aborted && !signal.aborted && !(error instanceof PermanentError))
      throw new TransientError(
        UNSURE,
        `it was not done after ${timeoutMs / 1_000} s (${said(progress, tree, timeoutMs)})`,
      );
    throw error;
  } finally {
    clearInterval(reporting);
    await rm(folder, { recursive: true, force: true });
  }
}

async function fill(
  seed: SeedSpec | undefined,
  entries: readonly SeedEntry[],
  context: SourceContext,
): Promise<Origin> {
  if (seed?.git !== undefined) return await seedFromGit(seed.git, context);
  if (seed?.archive !== undefined) return await seedFromArchive(seed.archive, context);
  if (seed?.workspace !== undefined) return await seedFromWorkspace(seed.workspace, context);
  // The operator read the ConfigMap into the claim.
  for (const { path, executable, content } of entries) {
    const normal = normalisePath(path);
    if ('refused' in normal) throw new PermanentError('PathRefused', normal.refused);
    await context.tree.file(normal.path, executable, content.length, once(content));
  }
  return { configMap: { name: seed?.configMap?.name ?? '' } };
}

async function* once(content: Buffer): AsyncIterable<Buffer> {
  yield content;
}

/** For good, or after so many tries that it looks like it. */
function isOver(error: unknown, attempt: number): boolean {
  if (error instanceof PermanentError) return true;
  const isKnownToPass = error instanceof TransientError && error.reason !== UNSURE;
  return !isKnownToPass && attempt >= MAX_ATTEMPTS;
}

function isOfStore(error: unknown): boolean {
  return error instanceof TransientError && error.reason === 'StoreUnavailable';
}

function shown(error: unknown): string {
  if (error instanceof PermanentError || error instanceof TransientError) return error.message;
  const code = error instanceof Error && 'code' in error ? ` (${String(error.code)})` : '';
  return `${error instanceof Error ? error.message : String(error)}${code}`;
}

function said({ phase, bytes }: Progress, tree: SeedTree, ms: number): string {
  const fetched = bytes === undefined ? '' : `${bytes} bytes, `;
  const stored = tree.files === 0 ? '' : `${tree.files} files with ${tree.bytes} bytes, `;
  return `${phase}: ${fetched}${stored}${Math.round(ms / 1_000)} s`;
}

function countOf(changes: readonly Change[]): number {
  return changes.filter((c) => c.op === 'put' && c.kind !== 'directory').length;
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
