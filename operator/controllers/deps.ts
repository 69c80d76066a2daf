/** What every reconciler is given. */
import type { KubeClient } from '../kube/client.ts';
import type { EventRecorder } from '../kube/events.ts';
import type { Cache } from '../kube/reflector.ts';
import type { ControlStore } from '../store/control-store.ts';
import type { Logger } from '../telemetry/log.ts';
import type { Pod, Sandbox, Turn, Workspace, WorkspaceClass, WorkspaceQuota } from './resources.ts';

export type Settings = Readonly<{
  /** Where Lathe is installed. */
  namespace: string;
  turnsService: string;
  sandboxPort: number;
  runtimeImage: string;
  sandboxImage: string;
  /** Whether the live API goes through the cluster's API server too. */
  aggregated: boolean;
}>;
export type Deps = Readonly<{
  client: KubeClient;
  store: ControlStore;
  events: EventRecorder;
  log: Logger;
  settings: Settings;
  workspaces: Cache<Workspace>;
  turns: Cache<Turn>;
  sandboxes: Cache<Sandbox>;
  classes: Cache<WorkspaceClass>;
  quotas: Cache<WorkspaceQuota>;
  pods: Cache<Pod>;
  now: () => Date;
}>;
