/** What rows look like to the rest of the program. Ids are UUIDs as text; versions, sequences and epochs are bigint. */
import type { ClassSpec, EffectiveSpec, TurnSpec, WorkspaceSpec } from '../../crds/types.ts';

export type Lease = Readonly<{ workspace: string; incarnation: bigint; epoch: bigint; token: string }>;
export type TurnPhase = 'Queued' | 'Running' | 'NeedsContinuation' | 'Completed' | 'Blocked' | 'Cancelled' | 'Failed';
export type SeedState = 'None' | 'Pending' | 'Ready' | 'Done' | 'Failed';

export type WorkspaceRow = Readonly<{
  id: string;
  tenant: string;
  namespace: string;
  name: string;
  uid: string;
  generation: bigint;
  class: string;
  spec: WorkspaceSpec;
  effective: EffectiveSpec;
  head: bigint;
  last_seq: bigint;
  files: bigint;
  bytes: bigint;
  seed_state: SeedState;
  seed_error: string | null;
  /** Tries that ended with what time may heal. */
  seed_attempts: number;
}>;

export type TurnRow = Readonly<{
  id: string;
  workspace: string;
  name: string;
  uid: string;
  session: string;
  spec: TurnSpec;
  phase: TurnPhase;
  reason: string | null;
  message: string | null;
  answer: string | null;
  exit_code: number | null;
  output: string | null;
  steps: number;
  usage: Usage | null;
  files: FileCounts | null;
  from_version: bigint | null;
  to_version: bigint | null;
  cancel_requested: boolean;
  queued_at: Date;
  started_at: Date | null;
  finished_at: Date | null;
}>;

export type ExecutionRow = Readonly<{
  id: string;
  workspace: string;
  turn: string | null;
  session: string | null;
  tool_use_id: string | null;
  actor: string | null;
  command: string;
  timeout_ms: number;
  state: 'planned' | 'dispatched' | 'done' | 'unknown';
  sandbox: string;
  boot: string;
  base_version: bigint;
  version: bigint | null;
  result: unknown;
}>;

export type SandboxRow = Readonly<{
  id: string;
  workspace: string;
  uid: string | null;
  name: string | null;
  operating_mode: 'Running' | 'Suspended';
  demanded: boolean;
  closed: boolean;
  activity: bigint;
  pod_seq: number;
  pod_name: string | null;
  pod_uid: string | null;
  boot: string | null;
  attached_replica: string | null;
  attached_at: Date | null;
  facts: Record<string, string> | null;
  synced_version: bigint | null;
  report: SandboxReport | null;
}>;

/** What keeps a sandbox from running, for the message of a turn that waits for it. */
export type SandboxReport = Readonly<{ reason: string; message: string }>;
export type ClassRow = Readonly<{ name: string; uid: string; spec: ClassSpec }>;
export type Usage = Readonly<{
  inputTokens: number;
  outputTokens: number;
  cacheReadTokens: number;
  cacheCreationTokens: number;
}>;
/** `paths`: the first 20. */
export type FileCounts = Readonly<{ created: number; changed: number; deleted: number; paths: readonly string[] }>;

export type FileKind = 'regular' | 'symlink' | 'directory';
export type FileEntry = Readonly<{
  path: string;
  kind: FileKind;
  executable: boolean;
  size: bigint;
  sha256: Buffer | null;
  target: string | null;
  version: bigint;
}>;
/** `base`: the version of this path's row that the writer had seen; 0: it did not exist. */
export type Change = Readonly<
  | {
      path: string;
      op: 'put';
      kind: FileKind;
      executable: boolean;
      size: number;
      sha256?: Buffer;
      target?: string;
      base: bigint;
    }
  | { path: string; op: 'delete'; base: bigint }
>;

export type Origin = 'execution' | 'outside' | 'api' | 'seed' | 'import' | 'restore';
export type NewEvent = Readonly<{
  type: string;
  v: number;
  session?: string;
  turn?: string;
  execution?: string;
  actor?: string;
  payload: unknown;
}>;
export type LogEvent = NewEvent & Readonly<{ seq: bigint; at: Date; epoch: bigint }>;

export type TurnUpdate = Readonly<{
  id: string;
  phase?: TurnPhase;
  reason?: string;
  message?: string;
  answer?: string;
  exitCode?: number;
  output?: string;
  steps?: number;
  usage?: Usage;
  files?: FileCounts;
  fromVersion?: bigint;
  toVersion?: bigint;
  started?: true;
  finished?: true;
}>;
export type Termination = Readonly<{
  container: string;
  reason: string;
  exit_code: number | null;
  message: string | null;
  at: Date;
}>;
