/**
 * The APIService of the live API. While one is there and nobody answers, the deletion of every namespace of the cluster
 * hangs; so it is made when an endpoint is ready and withdrawn when none has been for a minute (K11).
 */
import type { KubeClient } from '../kube/client.ts';
import { isAlreadyExists, isNotFound } from '../kube/errors.ts';
import type { KubeObject, Resource } from '../kube/types.ts';
import { GROUP, VERSION } from '../../proto/live/types.ts';
import type { Logger } from '../telemetry/log.ts';
import { API_SERVICE, AUTHORITY_SECRET } from './certificates.ts';
import type { Settings } from './deps.ts';
import { LABELS, MANAGER, ownedBy, SECRETS } from './resources.ts';

type ApiService = KubeObject<Readonly<{ caBundle?: string }>>;
type EndpointSlice = KubeObject &
  Readonly<{ endpoints?: readonly Readonly<{ conditions?: Readonly<{ ready?: boolean }> }>[] | null }>;

const API_SERVICES: Resource<ApiService> = {
  group: 'apiregistration.k8s.io',
  version: 'v1',
  plural: 'apiservices',
  kind: 'APIService',
  namespaced: false,
};
const ENDPOINT_SLICES: Resource<EndpointSlice> = {
  group: 'discovery.k8s.io',
  version: 'v1',
  plural: 'endpointslices',
  kind: 'EndpointSlice',
  namespaced: true,
};
const CLUSTER_ROLES: Resource = {
  group: 'rbac.authorization.k8s.io',
  version: 'v1',
  plural: 'clusterroles',
  kind: 'ClusterRole',
  namespaced: false,
};
const NAME = `${VERSION}.${GROUP}`;
/** The chart's, so that the APIService goes with the installation and no Git tool puts it back. */
const OWNER = 'lathe-operator';
const LOOK_MS = 2_000;
/** RESOURCES "The live API". */
const WITHDRAW_MS = 60_000;

export type Seen = Readonly<{
  wanted: boolean;
  readyEndpoints: number;
  /** Since an endpoint was ready, or since this was looked at first. */
  unreadyMs: number;
  present: Readonly<{ ours: boolean; uid: string; caBundle: string | undefined }> | undefined;
  caBundle: string;
}>;

/** Pure. */
export function planApiService(seen: Seen): 'create' | 'patch' | 'delete' | 'nothing' {
  const { wanted, readyEndpoints, unreadyMs, present, caBundle } = seen;
  if (present !== undefined && !present.ours) return 'nothing';
  if (!wanted) return present === undefined ? 'nothing' : 'delete';
  if (readyEndpoints === 0) return present !== undefined && unreadyMs >= WITHDRAW_MS ? 'delete' : 'nothing';
  if (present === undefined) return 'create';
  return present.caBundle === caBundle ? 'nothing' : 'patch';
}

/** Looks on until the signal aborts. */
export async function runApiService(
  deps: Readonly<{ client: KubeClient; settings: Settings; log: Logger }>,
  signal: AbortSignal,
): Promise<void> {
  const { client, log } = deps;
  let readyAt = performance.now();
  while (!signal.aborted) {
    try {
      const seen = await look(deps, signal);
      if (seen.readyEndpoints > 0) readyAt = performance.now();
      const plan = planApiService({ ...seen, unreadyMs: performance.now() - readyAt });
      if (plan !== 'nothing') {
        log.info(`the APIService of the live API: ${plan}`, { name: NAME, count: seen.readyEndpoints });
        await act(client, deps.settings, plan, seen, signal);
      }
    } catch (err) {
      if (!signal.aborted) log.warn('the APIService of the live API was not looked at', { err });
    }
    await pause(LOOK_MS, signal);
  }
}

async function look(
  { client, settings }: Readonly<{ client: KubeClient; settings: Settings }>,
  signal: AbortSignal,
): Promise<Omit<Seen, 'unreadyMs'>> {
  const { namespace } = settings;
  const found = await client.get(API_SERVICES, { name: NAME }, signal).catch(absent);
  const present =
    found === undefined
      ? undefined
      : {
          ours: found.metadata.labels?.[LABELS.managedBy] === MANAGER,
          uid: found.metadata.uid,
          caBundle: found.spec?.caBundle,
        };
  if (!settings.aggregated) return { wanted: false, readyEndpoints: 0, present, caBundle: '' };
  const { items } = await client.list(
    ENDPOINT_SLICES,
    { namespace, labelSelector: `kubernetes.io/service-name=${API_SERVICE}`, limit: 100 },
    signal,
  );
  const authority = await client.get(SECRETS, { namespace, name: AUTHORITY_SECRET }, signal);
  return {
    wanted: true,
    readyEndpoints: items.flatMap((slice) => slice.endpoints ?? []).filter((e) => e.conditions?.ready === true).length,
    present,
    caBundle: authority.data?.['tls.crt'] ?? '',
  };
}

async function act(
  client: KubeClient,
  { namespace }: Settings,
  plan: 'create' | 'patch' | 'delete',
  { caBundle, present }: Pick<Seen, 'caBundle' | 'present'>,
  signal: AbortSignal,
): Promise<void> {
  if (plan === 'delete') {
    // The one that was looked at: what somebody else has put in its place is theirs.
    const uid = present === undefined ? {} : { uid: present.uid };
    await client.delete(API_SERVICES, { name: NAME }, uid, signal).catch(absent);
    return;
  }
  if (plan === 'patch') {
    await client.mergePatch(API_SERVICES, { name: NAME }, { spec: { caBundle } }, signal);
    return;
  }
  const owner = await client.get(CLUSTER_ROLES, { name: OWNER }, signal);
  const made = {
    apiVersion: 'apiregistration.k8s.io/v1',
    kind: 'APIService',
    metadata: {
      name: NAME,
      labels: { [LABELS.managedBy]: MANAGER },
      ownerReferences: ownedBy(CLUSTER_ROLES, owner, false),
    },
    spec: {
      group: GROUP,
      version: VERSION,
      groupPriorityMinimum: 1_000,
      versionPriority: 15,
      service: { namespace, name: API_SERVICE, port: 443 },
      caBundle,
    },
  };
  await client.create(API_SERVICES, made, {}, signal).catch((error: unknown) => {
    if (!isAlreadyExists(error)) throw error;
  });
}

function absent(error: unknown): undefined {
  if (!isNotFound(error)) throw error;
  return undefined;
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    function done() {
      clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve();
    }
    signal.addEventListener('abort', done, { once: true });
  });
}
