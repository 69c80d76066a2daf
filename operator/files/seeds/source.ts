/** What every source of a seed is given, and what it gives back. */
import type { Outbound } from '../../outbound.ts';
import type { WorkspaceRow } from '../../store/rows.ts';
import type { WorkspaceStore } from '../../store/workspace-store.ts';
import type { SeedTree } from './tree.ts';

/** Values by key, and the hosts that its annotation allows it for. @throws TransientError NotFound, Forbidden */
export type ReadTenantSecret = (
  namespace: string,
  name: string,
) => Promise<Readonly<{ data: ReadonlyMap<string, Buffer>; hosts?: readonly string[] }>>;

export type SeedDeps = Readonly<{
  store: WorkspaceStore;
  outbound: Outbound;
  readSecret: ReadTenantSecret;
  /** A folder of this process alone; each try has one of its own in it, which goes with the try. */
  folder: string;
  /** Of that folder, what one try may fill. Absent: as much as the workspace's own limits let it. */
  diskBytes?: number;
  /** Whom https trusts, in PEM. Absent: whom Node trusts, NODE_EXTRA_CA_CERTS included. */
  certificates?: readonly string[];
  /** Of one try. */
  timeoutMs?: number;
  /** Progress is reported at most this often. */
  reportMs?: number;
}>;

export type Progress = { phase: string; bytes?: number };
export type SourceContext = Readonly<{
  deps: SeedDeps;
  workspace: WorkspaceRow;
  tree: SeedTree;
  /** Of this try; empty. */
  folder: string;
  progress: Progress;
  signal: AbortSignal;
}>;
/** What the event says of where the files came from; no credentials. */
export type Origin = Readonly<Record<string, unknown>>;
