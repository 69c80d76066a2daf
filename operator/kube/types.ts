/** Kubernetes objects as this client handles them, and how a kind is addressed. */

export type OwnerReference = Readonly<{
  apiVersion: string;
  kind: string;
  name: string;
  uid: string;
  controller?: boolean;
  blockOwnerDeletion?: boolean;
}>;
export type ObjectMeta = Readonly<{
  name: string;
  namespace?: string;
  uid: string;
  resourceVersion: string;
  generation?: number;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  labels?: Readonly<Record<string, string>>;
  annotations?: Readonly<Record<string, string>>;
  ownerReferences?: readonly OwnerReference[];
}>;
export type KubeObject<Spec = unknown, Status = unknown> = Readonly<{
  apiVersion?: string;
  kind?: string;
  metadata: ObjectMeta;
  spec: Spec;
  status?: Status;
}>;
/** What a create takes: no uid yet. */
export type NewObject = Readonly<{
  apiVersion: string;
  kind: string;
  metadata: Partial<ObjectMeta> & Readonly<{ name?: string; generateName?: string }>;
  [key: string]: unknown;
}>;

/** One kind. The type parameter is what its objects look like. */
export type Resource<T extends KubeObject = KubeObject> = Readonly<{
  group: string;
  version: string;
  plural: string;
  kind: string;
  namespaced: boolean;
  _?: T;
}>;
export type Ref = Readonly<{ namespace?: string; name: string }>;

export type List<T> = Readonly<{
  items: readonly T[];
  metadata: Readonly<{ resourceVersion: string; continue?: string }>;
}>;
export type WatchEvent<T> = Readonly<
  | { type: 'ADDED' | 'MODIFIED' | 'DELETED'; object: T }
  | { type: 'BOOKMARK'; object: Readonly<{ metadata: Readonly<{ resourceVersion: string }> }> }
  | { type: 'ERROR'; object: Readonly<{ code?: number; reason?: string; message?: string }> }
>;

export const apiVersionOf = (r: Pick<Resource, 'group' | 'version'>): string =>
  r.group === '' ? r.version : `${r.group}/${r.version}`;
export const keyOf = (ref: Ref): string => `${ref.namespace ?? ''}/${ref.name}`;
export const refOf = (o: Pick<KubeObject, 'metadata'>): Ref => ({
  ...(o.metadata.namespace === undefined ? {} : { namespace: o.metadata.namespace }),
  name: o.metadata.name,
});
