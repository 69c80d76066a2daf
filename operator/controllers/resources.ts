/** The kinds that the operator handles, ours and Kubernetes' own. */
import type {
  V1ConfigMap,
  V1Namespace,
  V1PersistentVolumeClaim,
  V1PodSpec,
  V1PodStatus,
  V1Secret,
  V1ServiceSpec,
  V1StorageClass,
} from '@kubernetes/client-node';
import { GROUP, VERSION } from '../../crds/kind.ts';
import type {
  ClassSpec,
  ClassStatus,
  QuotaSpec,
  QuotaStatus,
  SandboxSpec,
  SandboxStatus,
  TurnSpec,
  TurnStatus,
  WorkspaceSpec,
  WorkspaceStatus,
} from '../../crds/types.ts';
import type { KubeObject, ObjectMeta, Resource } from '../kube/types.ts';

export type Workspace = KubeObject<WorkspaceSpec, WorkspaceStatus>;
export type Turn = KubeObject<TurnSpec, TurnStatus>;
export type Sandbox = KubeObject<SandboxSpec, SandboxStatus>;
export type WorkspaceClass = KubeObject<ClassSpec, ClassStatus>;
export type WorkspaceQuota = KubeObject<QuotaSpec, QuotaStatus>;
export type Pod = KubeObject<V1PodSpec, V1PodStatus>;
/** What has no spec of its own, or none that we read. */
type Plain<T> = KubeObject & Readonly<Omit<T, 'metadata' | 'spec' | 'status'>>;

const ours = <T extends KubeObject>(kind: string, plural: string, namespaced = true): Resource<T> => ({
  group: GROUP,
  version: VERSION,
  plural,
  kind,
  namespaced,
});
const core = <T extends KubeObject>(kind: string, plural: string, namespaced = true): Resource<T> => ({
  group: '',
  version: 'v1',
  plural,
  kind,
  namespaced,
});

export const WORKSPACES = ours<Workspace>('Workspace', 'workspaces');
export const TURNS = ours<Turn>('Turn', 'turns');
export const SANDBOXES = ours<Sandbox>('Sandbox', 'sandboxes');
export const CLASSES = ours<WorkspaceClass>('WorkspaceClass', 'workspaceclasses', false);
export const QUOTAS = ours<WorkspaceQuota>('WorkspaceQuota', 'workspacequotas');
export const PODS = core<Pod>('Pod', 'pods');
export const CLAIMS = core<Plain<V1PersistentVolumeClaim>>('PersistentVolumeClaim', 'persistentvolumeclaims');
export const CONFIG_MAPS = core<Plain<V1ConfigMap>>('ConfigMap', 'configmaps');
export const SECRETS = core<Plain<V1Secret>>('Secret', 'secrets');
export const SERVICES = core<KubeObject<V1ServiceSpec>>('Service', 'services');
export const SERVICE_ACCOUNTS = core('ServiceAccount', 'serviceaccounts');
export const NAMESPACES = core<Plain<V1Namespace>>('Namespace', 'namespaces', false);
export const STORAGE_CLASSES: Resource<Plain<V1StorageClass>> = {
  group: 'storage.k8s.io',
  version: 'v1',
  plural: 'storageclasses',
  kind: 'StorageClass',
  namespaced: false,
};
export const NETWORK_POLICIES: Resource = {
  group: 'networking.k8s.io',
  version: 'v1',
  plural: 'networkpolicies',
  kind: 'NetworkPolicy',
  namespaced: true,
};

export const LABELS = {
  managedBy: 'app.kubernetes.io/managed-by',
  workspace: 'lathe.dev/workspace',
  /** Our own id of the workspace's record; what has another one, or none, is not ours. */
  workspaceId: 'lathe.dev/workspace-id',
  class: 'lathe.dev/class',
} as const;
export const MANAGER = 'lathe';

/** Makes `owned` go with `owner`. */
export function ownedBy(
  resource: Resource,
  owner: Readonly<{ metadata: Pick<ObjectMeta, 'name' | 'uid'> }>,
  controller = true,
) {
  return [
    {
      apiVersion: `${resource.group}/${resource.version}`,
      kind: resource.kind,
      name: owner.metadata.name,
      uid: owner.metadata.uid,
      controller,
      blockOwnerDeletion: false,
    },
  ];
}
