/** The operator's side of the store: specs in, projections out, and what it knows of pods. Every call may run twice. */
import type { ClassSpec, EffectiveSpec, TurnSpec, WorkspaceSpec } from '../../crds/types.ts';
import { openDatabase, type Database } from './database.ts';
import { projectionQueries } from './projections.ts';
import type { SandboxReport, SandboxRow, SeedState, TurnRow } from './rows.ts';
import { sandboxRowQueries } from './sandbox-rows.ts';
import { specQueries } from './specs.ts';
import type { SeedEntry } from './workspace-store.ts';

export type DirtyKind = 'turn' | 'workspace' | 'sandbox';
export type Dirty = Readonly<{ kind: DirtyKind; id: string; generation: bigint }>;
export type WorkspaceProjection = Readonly<{
  id: string;
  namespace: string;
  name: string;
  uid: string;
  head: bigint;
  files: bigint;
  bytes: bigint;
  seed_state: SeedState;
  seed_error: string | null;
  seed_message: string | null;
  active_turn: string | null;
  sandbox: string | null;
}>;
export type TurnProjection = TurnRow &
  Readonly<{
    namespace: string;
    workspace_name: string;
    sandbox_report: SandboxReport | null;
    sandbox_name: string | null;
  }>;
/** Times by the database's clock. */
export type SandboxActivity = SandboxRow &
  Readonly<{
    idle_ms: number;
    age_ms: number | null;
    open_executions: number;
    running_turn: string | null;
    deleted: boolean;
  }>;

export type RecordRow = Readonly<{
  id: string;
  uid: string;
  name: string;
  namespace_uid: string;
  deleted_at: Date | null;
  files: bigint;
  bytes: bigint;
}>;
export type DeletedRecord = Readonly<{ id: string; spec: WorkspaceSpec; deletedMs: number; orphan: boolean }>;

export interface ControlStore {
  upsertTenant(t: { namespace: string; namespaceUid: string }): Promise<string>;
  upsertClass(c: { name: string; uid: string; generation: number; spec: ClassSpec }): Promise<void>;
  /** A new uid under an old name: the old record is marked deleted, the new one starts empty. */
  upsertWorkspace(w: {
    tenant: string;
    namespace: string;
    name: string;
    uid: string;
    generation: number;
    class: string;
    spec: WorkspaceSpec;
    effective: EffectiveSpec;
    hasSeed: boolean;
    /** The record that it goes on with; undefined: its own, or a new one. */
    adopt?: string;
  }): Promise<{ id: string; seed_state: SeedState }>;
  /** What a Workspace that is seen for the first time may have been. */
  findRecords(w: { uid: string; namespace: string; name: string; adopt?: string }): Promise<readonly RecordRow[]>;
  /** Records whose objects are gone. */
  deletedRecords(): Promise<readonly DeletedRecord[]>;
  /** A step of it; true: it is gone. @throws for one that is not deleted */
  purgeRecord(id: string): Promise<boolean>;
  /** Bytes; undefined: no limit. */
  putQuota(tenant: string, storedBytes: number | undefined): Promise<void>;
  /** Of all its workspaces, at their heads. */
  storedBytes(tenant: string): Promise<bigint>;
  /** Contents that nothing names, of a day ago or older. @returns how many went, at most 1,000 */
  collectBlobs(): Promise<number>;
  /** Only while the seed is awaited. No entries: the turn controller fetches them itself. */
  putSeed(workspace: string, entries: readonly SeedEntry[]): Promise<void>;
  markWorkspaceDeleted(uid: string): Promise<void>;
  findWorkspaceByUid(uid: string): Promise<{ id: string; name: string; namespace: string } | undefined>;
  upsertTurn(t: {
    workspace: string;
    name: string;
    uid: string;
    spec: TurnSpec;
    specHash: string;
  }): Promise<{ id: string; created: boolean }>;
  /** Its object is gone: cancelled, be it queued or running. */
  cancelTurn(uid: string): Promise<void>;

  takeDirty(limit: number): Promise<readonly Dirty[]>;
  clearDirty(d: Dirty): Promise<void>;
  turnProjection(id: string): Promise<TurnProjection | undefined>;
  workspaceProjection(id: string): Promise<WorkspaceProjection | undefined>;

  /** Workspaces whose sandbox is asked for, or has a pod, or an object. */
  sandboxesToLookAt(): Promise<readonly { workspace: string; namespace: string; name: string }[]>;
  sandboxOf(namespace: string, name: string): Promise<SandboxActivity | undefined>;
  ensureSandbox(
    workspace: string,
    object: { uid: string; name: string; operatingMode: 'Running' | 'Suspended'; demand: boolean },
  ): Promise<SandboxRow>;
  setPod(sandbox: string, pod: { seq: number; name: string; uid: string }): Promise<void>;
  /** The row no longer names this pod: its token is worth nothing. */
  revokePod(sandbox: string, podUid: string): Promise<void>;
  /** No turn may bind any more, unless something happened since `seen`. */
  closeSandbox(sandbox: string, seen: bigint): Promise<'done' | 'stale'>;
  recordTermination(t: {
    sandbox: string;
    podUid: string;
    container: string;
    restartCount: number;
    reason: string;
    exitCode?: number;
    message?: string;
  }): Promise<void>;
  reportSandbox(sandbox: string, report: SandboxReport | null): Promise<void>;
  close(): Promise<void>;
}

export function openControlStore(url: string): ControlStore & Readonly<{ database: Database }> {
  const database = openDatabase(url, { size: 8, name: 'lathe operator' });
  let closed: Promise<void> | undefined;
  return {
    database,
    ...specQueries(database),
    ...projectionQueries(database),
    ...sandboxRowQueries(database),
    close: () => (closed ??= database.close()),
  };
}
