/** `Import` of the turn controller's API: an uploaded export becomes a workspace, by its owner. */
import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import type {
  Imported,
  ImportProgress,
  ImportRequest,
  ImportResponse,
  WorkspaceRef,
} from '../../proto/gen/lathe/turns/v1/turns.ts';
import { PermanentError } from '../errors.ts';
import { importKey, importWorkspace, type ImportResult } from '../files/import/import.ts';
import type { OwnedWorkspace, Ownership } from '../sandboxes/ownership.ts';
import type { ApiStore } from '../store/api-store.ts';
import { FenceLost } from '../store/database.ts';
import type { ImportStore } from '../store/import-store.ts';
import type { WorkspaceRow } from '../store/rows.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';

/** Where the parts of an upload are. */
export type Uploads = Pick<ApiStore, 'readUpload'>;
export type ImportsStore = ImportStore & Uploads;
export type Imports = (
  request: ImportRequest,
  send: (response: ImportResponse) => Promise<void>,
  signal: AbortSignal,
) => Promise<void>;

const PROGRESS_MS = 1_000;
/** In one process at a time: each has a few MB, and connections to the store. */
const MAX_RUNNING = 4;
type Running = { progress: ImportProgress; done: Promise<ImportResult> };

export function createImports(deps: {
  store: WorkspaceStore & ImportsStore;
  ownership: Ownership;
  find: (ref: WorkspaceRef | undefined, signal: AbortSignal) => Promise<WorkspaceRow>;
  /** The workspace's log has grown. */
  onEvents: (workspace: string) => void;
}): Imports {
  const { store, ownership } = deps;
  const running = new Map<string, Running>();

  return async (request, send, signal) => {
    const workspace = await deps.find(request.workspace, signal);
    const before = await answered(workspace, request, signal);
    if (before !== undefined) return await send({ message: { $case: 'imported', value: wireOf(before) } });
    const owned = await ownership.acquire(workspace, signal);
    if ('redirect' in owned) return await send({ message: { $case: 'redirect', value: { address: owned.redirect } } });
    const key = JSON.stringify([workspace.id, request.upload, request.dryRun, request.headOnly]);
    const run = running.get(key) ?? begin(key, owned, request);
    for (;;) {
      const result = await Promise.race([run.done, delay(PROGRESS_MS, undefined, { ref: false })]);
      signal.throwIfAborted();
      if (result !== undefined) return await send({ message: { $case: 'imported', value: wireOf(result) } });
      await send({ message: { $case: 'progress', value: run.progress } });
    }
  };

  async function answered(
    workspace: WorkspaceRow,
    { upload, dryRun }: ImportRequest,
    signal: AbortSignal,
  ): Promise<ImportResult | undefined> {
    const found = dryRun ? undefined : await store.answered(workspace, importKey(upload), signal);
    if (found === undefined) return undefined;
    const { version, ...rest } = found.response as Omit<ImportResult, 'version'> & { version: number };
    return { ...rest, version: BigInt(version) };
  }

  function begin(key: string, owned: OwnedWorkspace, request: ImportRequest): Running {
    if (running.size >= MAX_RUNNING)
      throw new PermanentError('TooManyRequests', `${MAX_RUNNING} imports are running here; ask again later`);
    const run: Running = {
      progress: { bytes: 0n, files: 0n },
      // The end of the stream does not cancel it; the loss of the workspace does.
      done: ownership.using(owned, () => owned.oneWrite(() => work(owned, request, run))),
    };
    running.set(key, run);
    const over = () => running.delete(key);
    run.done.then(over, over);
    return run;
  }

  async function work(owned: OwnedWorkspace, request: ImportRequest, run: Running): Promise<ImportResult> {
    const { upload, dryRun, headOnly, actor } = request;
    try {
      // One that was running when this was asked is over by now.
      const before = await answered(owned.workspace, request, owned.signal);
      if (before !== undefined) return before;
      const result = await importWorkspace(
        store,
        owned,
        store.readUpload(upload, owned.signal),
        {
          dryRun,
          headOnly,
          ...(actor === '' ? {} : { actor }),
          ...(dryRun
            ? {}
            : { idempotency: { key: importKey(upload), requestSha256: createHash('sha256').digest(), response: {} } }),
          onProgress: ({ bytes, files }) => (run.progress = { bytes: BigInt(bytes), files: BigInt(files) }),
        },
        owned.signal,
      );
      if (!dryRun) {
        owned.moved(result.version);
        deps.onEvents(owned.workspace.id);
      }
      return result;
    } catch (error) {
      if (error instanceof FenceLost) ownership.lost(owned);
      throw error;
    }
  }
}

function wireOf({ version, refused, ...counts }: ImportResult): Imported {
  return {
    version,
    files: BigInt(counts.files),
    bytes: BigInt(counts.bytes),
    versions: BigInt(counts.versions),
    events: BigInt(counts.events),
    turns: BigInt(counts.turns),
    values: BigInt(counts.kv),
    refused: [...refused],
    refusedCount: BigInt(counts.refusedCount),
  };
}
