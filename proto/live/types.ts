/**
 * What the live API (`live.lathe.dev/v1alpha1`) says, for those who serve it and those who call it.
 * All numbers are JSON numbers; versions and sizes stay below 2^53.
 */

export const GROUP = 'live.lathe.dev';
export const VERSION = 'v1alpha1';
export const API_VERSION = `${GROUP}/${VERSION}`;

/** A body that is sent or asked for in one request; what is larger goes in parts (the aggregated way ends requests at 60 s). */
export const PART_BYTES = 8 * 1024 * 1024;
/** A tar in one request, unpacked. */
export const ARCHIVE_BYTES = 64 * 1024 * 1024;
/** An upload that was not completed is gone after this. */
export const UPLOAD_TTL_HOURS = 24;
export const LIST_LIMIT = { default: 1_000, max: 5_000 } as const;
/** Contents of one value. */
export const KV_BYTES = 256 * 1024;
/** Of all values of a workspace. */
export const KV_LIMITS = { keys: 10_000, bytes: 64 * 1024 * 1024 } as const;

/** Request headers beside the standard If-Match, If-None-Match, Range, Idempotency-Key. */
export const HEADERS = {
  /** Version of the workspace that the answer speaks of. */
  version: 'lathe-version',
  /** Version in which this file was last written. */
  fileVersion: 'lathe-file-version',
  kind: 'lathe-kind',
  /** `0644` or `0755`; links `0777`. */
  mode: 'lathe-mode',
  /** Cursor to go on with where an answer has no body to say it in. */
  continue: 'lathe-continue',
  /** Of the log that an export has. */
  seq: 'lathe-seq',
  /** Of what an export has that has no version: it was kept as it was when the export began. */
  state: 'lathe-state',
  /** Bytes of the whole export. */
  size: 'lathe-size',
} as const;

export type FileKind = 'regular' | 'symlink' | 'directory';

/** A path is absolute within the workspace. Folders are listed only when empty. */
export type FileInfo = Readonly<{
  path: string;
  kind: FileKind;
  executable: boolean;
  size: number;
  /** Hex; of regular files. The ETag is this in quotes. */
  sha256?: string;
  /** Of links. */
  target?: string;
  /** In which it was last written. */
  version: number;
}>;

/** `GET …/files`, ordered by path (bytes). `metadata.continue`: there is more; it names the version, so pages fit together. */
export type FileList = Readonly<{
  kind: 'FileList';
  apiVersion: typeof API_VERSION;
  metadata: Readonly<{ continue?: string }>;
  version: number;
  items: readonly FileInfo[];
}>;

export type Refused = Readonly<{ path: string; reason: string; message: string }>;
/** Which folders and files a write names; the first 20 of each. */
export type ChangeCounts = Readonly<{ created: number; changed: number; deleted: number; paths: readonly string[] }>;

/** What a write did: one version, or none where nothing changed. */
export type WriteResult = Readonly<{
  kind: 'WriteResult';
  apiVersion: typeof API_VERSION;
  /** The head after it. */
  version: number;
  /** False: everything was so already, or it was a dry run. */
  committed: boolean;
  dryRun: boolean;
  files: ChangeCounts;
  /** Dropped by a guard; the rest was committed. A write of one path that is refused is an error instead. */
  refused: readonly Refused[];
}>;

/** `POST …/files`: all of it as one version, in this order. A `rename` of a folder moves what is in it. */
export type FileOperations = Readonly<{ operations: readonly FileOperation[] }>;
export type FileOperation = Readonly<
  | { op: 'delete'; path: string; recursive?: boolean; ifMatch?: string }
  | { op: 'rename'; from: string; to: string; overwrite?: boolean }
  | { op: 'copy'; from: string; to: string; overwrite?: boolean }
  | { op: 'symlink'; path: string; target: string }
  | { op: 'mkdir'; path: string }
  | { op: 'chmod'; path: string; executable: boolean }
>;

/** `POST …/files?path=/x&uploads=true`, then parts, then `complete`. */
export type Upload = Readonly<{
  kind: 'Upload';
  apiVersion: typeof API_VERSION;
  id: string;
  path: string;
  /** Bytes stored so far; the next part starts here. */
  offset: number;
  partBytes: number;
  expiresAt: string;
}>;

/** `GET …/versions`, the newest first. */
export type VersionList = Readonly<{
  kind: 'VersionList';
  apiVersion: typeof API_VERSION;
  metadata: Readonly<{ continue?: string }>;
  head: number;
  items: readonly VersionInfo[];
}>;
export type VersionInfo = Readonly<{
  version: number;
  /** RFC 3339. */
  at: string;
  origin: 'execution' | 'outside' | 'api' | 'seed' | 'import' | 'restore';
  actor?: string;
  turn?: string;
  session?: string;
  execution?: string;
  created: number;
  changed: number;
  deleted: number;
}>;

/** `GET …/diff?from=&to=`; with `format=patch` a unified patch (`text/x-diff`) instead. */
export type FileDiff = Readonly<{
  kind: 'FileDiff';
  apiVersion: typeof API_VERSION;
  metadata: Readonly<{ continue?: string }>;
  from: number;
  to: number;
  items: readonly FileChange[];
}>;
export type FileChange = Readonly<{
  path: string;
  change: 'created' | 'changed' | 'deleted';
  before?: FileInfo;
  after?: FileInfo;
}>;

/** `POST …/restore`: the tree, or what the globs name of it, becomes what it was at `version`, as a new version. */
export type RestoreRequest = Readonly<{ version: number; paths?: readonly string[]; dryRun?: boolean }>;

/** `GET …/kv?prefix=`; `GET|PUT|DELETE …/kv?key=` for one value, its bytes as the body. */
export type KeyValueList = Readonly<{
  kind: 'KeyValueList';
  apiVersion: typeof API_VERSION;
  metadata: Readonly<{ continue?: string }>;
  items: readonly Readonly<{ key: string; size: number; sha256: string; updatedAt: string }>[];
}>;

/** `GET …/log?after=&limit=` gives these as JSON lines. */
export type LogLine = Readonly<{
  seq: number;
  type: string;
  v: number;
  at: string;
  session?: string;
  turn?: string;
  execution?: string;
  actor?: string;
  payload: unknown;
}>;

/** `POST …/import?upload=`; while it is not `complete`, ask again: it goes on by itself. */
export type ImportResult = Readonly<{
  kind: 'ImportResult';
  apiVersion: typeof API_VERSION;
  complete: boolean;
  dryRun: boolean;
  /** The head, once it is complete; of a dry run, what it would be. */
  version: number;
  /** Read so far, then: what the workspace has. */
  files: number;
  bytes: number;
  /** Of the history, in the export. */
  versions: number;
  events: number;
  turns: number;
  values: number;
  /** Of the head alone what is refused is left out; with a history nothing is imported then. The first 100. */
  refused: readonly Refused[];
  refusedCount: number;
}>;

/** `metav1.Status`: what every error is. `reason` is one of RESOURCES "Errors" or one of Kubernetes' own. */
export type Status = Readonly<{
  kind: 'Status';
  apiVersion: 'v1';
  metadata: Readonly<Record<string, never>>;
  status: 'Failure';
  message: string;
  reason: string;
  code: number;
  details?: Readonly<{
    name?: string;
    group?: string;
    kind?: string;
    causes?: readonly Readonly<{ reason: string; message: string; field?: string }>[];
    retryAfterSeconds?: number;
  }>;
}>;
