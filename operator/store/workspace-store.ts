/** What the harness and the sandboxes need of a store (AD1). `test/integration/store/conformance.ts` says what each promises. */
import type {
  Change,
  ClassRow,
  ExecutionRow,
  FileEntry,
  Lease,
  LogEvent,
  NewEvent,
  Origin,
  SandboxRow,
  Termination,
  TurnRow,
  TurnUpdate,
  Usage,
  WorkspaceRow,
} from './rows.ts';

export type Owner = Readonly<{ replica: string; address: string }>;
export type Dispatch = Readonly<{
  id: string;
  command: string;
  timeoutMs: number;
  sandbox: string;
  boot: string;
  turn?: string;
  session?: string;
  toolUseId?: string;
  actor?: string;
  idempotencyKey?: string;
}>;
export type Commit = Readonly<{
  /** Absent: files or events alone. */
  execution?: Readonly<{
    id: string;
    sandbox: string;
    boot: string;
    state: 'done' | 'unknown';
    result: unknown;
    outputSha256?: Buffer;
  }>;
  changes: readonly Change[];
  /** The first tells whose doing the version is. */
  events: readonly NewEvent[];
  /** Why the version exists; absent: 'execution'. */
  origin?: Origin;
  /** A conflict undoes everything. @throws ChangedMeanwhile */
  atomic?: boolean;
  /** Kept with the version for 24 hours. @throws ChangedMeanwhile when the key was used in between */
  idempotency?: Readonly<{ key: string; requestSha256: Buffer; response: object }>;
  turn?: TurnUpdate;
  usage?: Usage & Readonly<{ turn: string }>;
}>;
/** Conflicts: paths whose version was not the change's base; they were left as they are. */
export type Committed = Readonly<{ head: bigint; firstSeq: bigint; lastSeq: bigint; conflicts: readonly string[] }>;
/** What stands where a write wants to go, all as of one moment. */
export type Ground = Readonly<{
  head: bigint;
  files: bigint;
  bytes: bigint;
  /** Of the paths asked for, and of the folders above them, those that are entries. */
  entries: ReadonlyMap<string, FileEntry>;
  /** Of the paths asked for, those with something below them. */
  folders: ReadonlySet<string>;
}>;
export type Answer = Readonly<{ requestSha256: Buffer; response: unknown }>;
export type Claim = Readonly<{ turn: TurnRow; workspace: WorkspaceRow; lease: Lease }>;
export type SeedEntry = Readonly<{ path: string; executable: boolean; content: Buffer }>;
export type SeedClaim = Readonly<{ workspace: WorkspaceRow; lease: Lease; entries: readonly SeedEntry[] }>;
export type FileDifference = Readonly<{ path: string; before?: FileEntry; after?: FileEntry }>;
export type Attach = Readonly<{
  sandbox: string;
  podUid: string;
  boot: string;
  replica: string;
  facts: Readonly<Record<string, string>>;
}>;

/**
 * Whatever takes a lease throws FenceLost, having written nothing, once the lease is not held any more. All throw
 * TransientError StoreUnavailable when the store can't be reached; what was asked may then have happened or not.
 */
export interface WorkspaceStore {
  heartbeat(replica: Owner, signal?: AbortSignal): Promise<{ incarnation: bigint }>;
  /** The lease, or who has it. Waits for a commit of the owner that is under way. */
  acquire(workspace: string, replica: string, signal?: AbortSignal): Promise<{ lease: Lease } | { owner: Owner }>;
  release(lease: Lease, signal?: AbortSignal): Promise<void>;
  /** A clean stop: everything it owns, and its heartbeat. */
  releaseAll(replica: string, signal?: AbortSignal): Promise<void>;

  /** Commits `dispatched` before anything is sent. `existing`: this id or idempotency key was dispatched before. */
  dispatch(
    lease: Lease,
    x: Dispatch,
    events: readonly NewEvent[],
    signal?: AbortSignal,
  ): Promise<{ head: bigint; existing?: string }>;
  /** THE commit (CONTRACTS 2). @throws ExecutionNotDispatched */
  commit(lease: Lease, commit: Commit, signal?: AbortSignal): Promise<Committed>;
  getExecution(id: string, signal?: AbortSignal): Promise<ExecutionRow | undefined>;
  openExecutions(workspace: string, signal?: AbortSignal): Promise<readonly ExecutionRow[]>;

  /** At most `limit` (1,000) in order of seq. */
  readEvents(
    workspace: string,
    filter: Readonly<{ after?: bigint; session?: string; turn?: string; types?: readonly string[]; limit?: number }>,
    signal?: AbortSignal,
  ): Promise<readonly LogEvent[]>;

  /** Pages of 2,000, ordered by path; at the head, or at a version. */
  tree(workspace: string, version: bigint | undefined, signal?: AbortSignal): AsyncIterable<readonly FileEntry[]>;
  head(workspace: string, signal?: AbortSignal): Promise<{ head: bigint; files: bigint; bytes: bigint }>;
  /** These paths as they were at a version; what was not there is left out. */
  entriesAt(
    workspace: string,
    paths: readonly string[],
    version: bigint,
    signal?: AbortSignal,
  ): Promise<ReadonlyMap<string, FileEntry>>;
  changesBetween(workspace: string, from: bigint, to: bigint, signal?: AbortSignal): Promise<readonly FileDifference[]>;
  ground(workspace: string, paths: readonly string[], signal?: AbortSignal): Promise<Ground>;
  /** Everything below a folder at the head, at most `limit`. */
  below(workspace: string, folder: string, limit: number, signal?: AbortSignal): Promise<readonly FileEntry[]>;
  /** Of these folders, those with nothing below them but what `except` names. */
  emptied(
    workspace: string,
    folders: readonly string[],
    except: readonly string[],
    signal?: AbortSignal,
  ): Promise<readonly string[]>;
  /** What this Idempotency-Key was answered within the last 24 hours. */
  answered(workspace: WorkspaceRow, key: string, signal?: AbortSignal): Promise<Answer | undefined>;
  /** Hex of those that a version of this workspace has; of other workspaces nothing is told. */
  knownHashes(workspace: string, sha256: readonly Buffer[], signal?: AbortSignal): Promise<ReadonlySet<string>>;
  /** Hashed here; what is there already is kept. */
  putBlobs(tenant: string, contents: readonly Buffer[], signal?: AbortSignal): Promise<readonly Buffer[]>;
  /** One content of any size, a few MiB of it in memory at a time. */
  putBlobStream(
    tenant: string,
    source: AsyncIterable<Buffer>,
    signal?: AbortSignal,
  ): Promise<Readonly<{ sha256: Buffer; size: number }>>;
  /** In pieces of at most 256 KiB; `range`: from the first byte to before the second. @throws PermanentError NotFound */
  readBlob(
    tenant: string,
    sha256: Buffer,
    signal?: AbortSignal,
    range?: Readonly<{ from: number; to: number }>,
  ): AsyncIterable<Buffer>;
  /** By hex, those that are there and have at most 256 KiB. Ask for as many as memory holds. */
  readSmallBlobs(tenant: string, sha256: readonly Buffer[], signal?: AbortSignal): Promise<ReadonlyMap<string, Buffer>>;

  /**
   * The next turn that may run, its workspace's lease with it: queued, or running with nobody to run it: its owner is
   * gone, or it is this replica and the turn is not among `running`, those that it runs at the moment.
   */
  claimTurn(replica: string, running: readonly string[], signal?: AbortSignal): Promise<Claim | undefined>;
  /** A seed that is due and that nobody works on; `running`: workspaces whose seed this replica works on. */
  claimSeed(replica: string, running: readonly string[], signal?: AbortSignal): Promise<SeedClaim | undefined>;
  /** What it does; with `retryAfterMs`: this try is over, and why. */
  reportSeed(
    lease: Lease,
    report: Readonly<{ message: string; retryAfterMs?: number }>,
    signal?: AbortSignal,
  ): Promise<void>;
  finishSeed(lease: Lease, error: string | undefined, signal?: AbortSignal): Promise<void>;
  getTurn(id: string, signal?: AbortSignal): Promise<TurnRow | undefined>;
  findTurn(workspace: string, name: string, signal?: AbortSignal): Promise<TurnRow | undefined>;
  getWorkspace(id: string, signal?: AbortSignal): Promise<WorkspaceRow | undefined>;
  findWorkspace(namespace: string, name: string, signal?: AbortSignal): Promise<WorkspaceRow | undefined>;
  getClass(name: string, signal?: AbortSignal): Promise<ClassRow | undefined>;
  /** Ids of turns whose cancelling was asked for and that have not ended. */
  cancelRequests(turns: readonly string[], signal?: AbortSignal): Promise<readonly string[]>;

  /** Asks the operator for a pod; idempotent. */
  demandSandbox(workspace: string, signal?: AbortSignal): Promise<SandboxRow>;
  getSandbox(workspace: string, signal?: AbortSignal): Promise<SandboxRow | undefined>;
  /** Undefined: the row names another pod, or none. */
  attachSandbox(
    attach: Attach,
    signal?: AbortSignal,
  ): Promise<{ sandbox: SandboxRow; workspace: WorkspaceRow } | undefined>;
  detachSandbox(sandbox: string, replica: string, signal?: AbortSignal): Promise<void>;
  terminations(sandbox: string, podUid: string, signal?: AbortSignal): Promise<readonly Termination[]>;
}
