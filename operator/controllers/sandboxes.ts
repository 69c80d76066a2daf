/** Sandboxes: from what is asked for to a pod, and from what the pod says to rows and conditions. */
import { parseDuration } from '../../crds/quantity.ts';
import type { SandboxStatus } from '../../crds/types.ts';
import { setConditions, type Condition } from '../kube/conditions.ts';
import { isAlreadyExists, isForbidden, isInvalid, isNotFound, KubeError } from '../kube/errors.ts';
import type { Result } from '../kube/queue.ts';
import type { Ref } from '../kube/types.ts';
import type { SandboxActivity } from '../store/control-store.ts';
import type { Deps } from './deps.ts';
import { networkPolicy } from './network-policy.ts';
import { buildPod, podName, SERVICE_ACCOUNT } from './pod.ts';
import {
  CLAIMS,
  LABELS,
  MANAGER,
  NETWORK_POLICIES,
  ownedBy,
  PODS,
  SANDBOXES,
  SECRETS,
  SERVICE_ACCOUNTS,
  SERVICES,
  WORKSPACES,
  type Pod,
  type Sandbox,
  type Workspace,
} from './resources.ts';
import { phaseOf, planSandbox, sandboxConditions, seePod, type Observed, type Trouble } from './sandbox-plan.ts';
import { writeStatus } from './status.ts';

/** A quota or an admission rule that refused is asked again this often: nothing tells us when it changes. */
const REFUSED_MS = 5_000;

export async function reconcileSandbox(deps: Deps, ref: Ref, signal: AbortSignal): Promise<Result> {
  const workspace = deps.workspaces.get(ref);
  if (workspace === undefined || workspace.metadata.deletionTimestamp !== undefined) return;
  let row = await deps.store.sandboxOf(ref.namespace ?? '', ref.name);
  const sandbox =
    deps.sandboxes.get(ref) ?? (row?.demanded === true ? await makeObject(deps, workspace, signal) : undefined);
  if (sandbox === undefined || sandbox.metadata.deletionTimestamp !== undefined) return;
  if (
    row === undefined ||
    row.uid !== sandbox.metadata.uid ||
    row.operating_mode !== (sandbox.spec.operatingMode ?? 'Running')
  ) {
    row = await bind(deps, workspace, sandbox, row);
    if (row === undefined) return { afterMs: 1_000 };
  }
  const pod = currentPod(deps, sandbox, row);
  if (pod !== undefined) await recordTerminations(deps, row, pod);
  const seen = observe(workspace, sandbox, row, pod);
  let failure: Trouble | undefined;
  let afterMs: number | undefined;
  for (const action of planSandbox(seen)) {
    signal.throwIfAborted();
    switch (action.do) {
      case 'revoke':
        await deps.store.revokePod(row.id, action.podUid);
        break;
      case 'close':
        // Something happened since we looked: that wakes us again.
        if ((await deps.store.closeSandbox(row.id, action.seen)) === 'stale') return;
        break;
      case 'deletePod':
        deps.events.record(SANDBOXES, sandbox, 'Normal', action.why, `pod ${action.name} is deleted; files stay`);
        await deps.client.delete(PODS, { ...ref, name: action.name }, { uid: action.uid }, signal).catch(ignoreMissing);
        break;
      case 'createPod':
        failure = await createPod(deps, workspace, sandbox, row, signal);
        afterMs = failure === undefined ? 5_000 : REFUSED_MS;
        break;
      case 'recheck':
        afterMs = action.afterMs;
        break;
    }
  }
  const trouble = failure ?? seen.pod?.trouble;
  await deps.store.reportSandbox(row.id, trouble ?? null);
  await report(deps, sandbox, seen, failure, pod, row, signal);
  if (trouble !== undefined) {
    deps.events.record(SANDBOXES, sandbox, 'Warning', trouble.reason, trouble.message);
    deps.events.record(WORKSPACES, workspace, 'Warning', trouble.reason, trouble.message);
  }
  return afterMs === undefined ? undefined : { afterMs };
}

function observe(workspace: Workspace, sandbox: Sandbox, row: SandboxActivity, pod: Pod | undefined): Observed {
  const life = workspace.status?.effective?.sandbox;
  return {
    operatingMode: sandbox.spec.operatingMode ?? 'Running',
    demanded: row.demanded,
    closed: row.closed,
    activity: row.activity,
    idleMs: row.idle_ms,
    idleTimeoutMs: parseDuration(life?.idleTimeout ?? '5m') ?? 0,
    ageMs: row.age_ms ?? undefined,
    maxLifetimeMs: parseDuration(life?.maxLifetime ?? '1h') ?? 0,
    openExecutions: row.open_executions,
    runningTurn: row.running_turn ?? undefined,
    podUid: row.pod_uid ?? undefined,
    pod: pod === undefined ? undefined : seePod(pod),
    attached: row.attached_at !== null && pod?.metadata.uid === row.pod_uid,
  };
}

async function makeObject(deps: Deps, workspace: Workspace, signal: AbortSignal): Promise<Sandbox | undefined> {
  const { name, namespace } = workspace.metadata;
  const object = {
    apiVersion: 'lathe.dev/v1alpha1',
    kind: 'Sandbox',
    metadata: {
      name,
      namespace: namespace ?? '',
      labels: { [LABELS.managedBy]: MANAGER },
      ownerReferences: ownedBy(WORKSPACES, workspace),
    },
    spec: { workspace: name, operatingMode: 'Running' },
  };
  return await deps.client.create(SANDBOXES, object, {}, signal).catch(async (error: unknown) => {
    // Somebody made it meanwhile, or our cache is behind.
    if (isAlreadyExists(error))
      return await deps.client.get(SANDBOXES, { ...(namespace === undefined ? {} : { namespace }), name }, signal);
    throw error;
  });
}

/** A person who makes a Sandbox starts ahead of need; ours were asked for by a row. */
async function bind(
  deps: Deps,
  workspace: Workspace,
  sandbox: Sandbox,
  row: SandboxActivity | undefined,
): Promise<SandboxActivity | undefined> {
  const record = await deps.store.findWorkspaceByUid(workspace.metadata.uid);
  if (record === undefined) return undefined;
  const operatingMode = sandbox.spec.operatingMode ?? 'Running';
  await deps.store.ensureSandbox(record.id, {
    uid: sandbox.metadata.uid,
    name: sandbox.metadata.name,
    operatingMode,
    demand: row === undefined && operatingMode === 'Running',
  });
  return await deps.store.sandboxOf(workspace.metadata.namespace ?? '', workspace.metadata.name);
}

/** By the name that only this sandbox and number give; the cache may not have it yet. */
function currentPod(deps: Deps, sandbox: Sandbox, row: SandboxActivity): Pod | undefined {
  const { namespace } = sandbox.metadata;
  const name = row.pod_name ?? podName(sandbox, row.pod_seq + 1);
  const pod = deps.pods.get({ ...(namespace === undefined ? {} : { namespace }), name });
  if (pod !== undefined || row.pod_uid === null) return pod;
  // Made a moment ago: what the row knows stands in until the watch has it.
  const young = (row.age_ms ?? 0) < 3_000;
  return young ? { metadata: { name, uid: row.pod_uid, resourceVersion: '' }, spec: { containers: [] } } : undefined;
}

async function createPod(
  deps: Deps,
  workspace: Workspace,
  sandbox: Sandbox,
  row: SandboxActivity,
  signal: AbortSignal,
): Promise<Trouble | undefined> {
  const effective = workspace.status?.effective;
  const classSpec = effective === undefined ? undefined : deps.classes.get({ name: effective.class })?.spec;
  if (effective === undefined || classSpec === undefined)
    return { reason: 'NotFound', message: 'what holds for its Workspace is not known yet' };
  const namespace = sandbox.metadata.namespace ?? '';
  const { settings, client } = deps;
  try {
    const [turns, claim] = await Promise.all([
      turnsOf(deps, signal),
      effective.volume.mode === 'Persistent' ? ensureClaim(deps, workspace, row, signal) : undefined,
      ensureAccount(deps, namespace, signal),
      client.apply(NETWORK_POLICIES, networkPolicy(namespace, effective.class, settings), {}, signal),
    ]);
    if (claim !== undefined && 'reason' in claim) return claim;
    const pod = buildPod({
      sandbox,
      sandboxId: row.id,
      workspaceId: row.workspace,
      seq: row.pod_seq + 1,
      effective,
      classSpec,
      claimName: claim?.name,
      runtimeImage: settings.runtimeImage,
      turns,
    });
    const made = await client.create(PODS, pod as never, {}, signal).catch(async (error: unknown) => {
      if (!isAlreadyExists(error)) throw error;
      const found = await client.get(PODS, { namespace, name: pod.metadata.name }, signal);
      // Made by us before a crash; anything else of that name is somebody's and stays as it is.
      if (found.metadata.ownerReferences?.some((o) => o.uid === sandbox.metadata.uid && o.controller === true))
        return found;
      return { foreign: pod.metadata.name } as const;
    });
    if ('foreign' in made)
      return {
        reason: 'Conflict',
        message: `pod ${made.foreign} exists and is not of this Sandbox; it is left alone, delete or rename it`,
      };
    await deps.store.setPod(row.id, { seq: row.pod_seq + 1, name: made.metadata.name, uid: made.metadata.uid });
    deps.events.record(SANDBOXES, sandbox, 'Normal', 'PodCreated', `created pod ${made.metadata.name}`);
    return undefined;
  } catch (error) {
    const refused = refusal(error);
    if (refused === undefined) throw error;
    return refused;
  }
}

/** Undefined: not a refusal. A quota's and a rule's refusals differ in their words alone; this is the one place that reads them. */
function refusal(error: unknown): Trouble | undefined {
  if (isForbidden(error) && error.message.includes('exceeded quota'))
    return { reason: 'QuotaExceeded', message: error.message };
  if (isForbidden(error)) return { reason: 'Forbidden', message: `the API server refused the pod: ${error.message}` };
  if (isInvalid(error))
    return { reason: 'Forbidden', message: `the API server takes the pod for invalid: ${error.message}` };
  return undefined;
}

async function turnsOf(deps: Deps, signal: AbortSignal) {
  const { namespace, turnsService, sandboxPort } = deps.settings;
  const [service, secret] = await Promise.all([
    deps.client.get(SERVICES, { namespace, name: turnsService }, signal),
    deps.client.get(SECRETS, { namespace, name: 'lathe-turns-tls' }, signal),
  ]);
  return {
    clusterIp: service.spec.clusterIP ?? '',
    host: `${turnsService}.${namespace}.svc`,
    port: sandboxPort,
    ca: Buffer.from(secret.data?.['ca.crt'] ?? '', 'base64').toString('utf8'),
  };
}

async function ensureAccount(deps: Deps, namespace: string, signal: AbortSignal): Promise<void> {
  const account = {
    apiVersion: 'v1',
    kind: 'ServiceAccount',
    metadata: { name: SERVICE_ACCOUNT, namespace, labels: { [LABELS.managedBy]: MANAGER } },
    automountServiceAccountToken: false,
  };
  await deps.client.apply(SERVICE_ACCOUNTS, account, {}, signal);
}

/** FW24: named after the workspace, so that it is known before it is there. */
async function ensureClaim(
  deps: Deps,
  workspace: Workspace,
  row: SandboxActivity,
  signal: AbortSignal,
): Promise<{ name: string } | Trouble> {
  const { name, namespace } = workspace.metadata;
  const where = { ...(namespace === undefined ? {} : { namespace }), name };
  const volume = workspace.status?.effective?.volume;
  const found = await deps.client.get(CLAIMS, where, signal).catch((error: unknown) => {
    if (isNotFound(error)) return undefined;
    throw error;
  });
  if (found !== undefined) {
    if (found.metadata.labels?.[LABELS.workspaceId] === row.workspace) return { name };
    return {
      reason: 'Conflict',
      message: `PersistentVolumeClaim ${name} exists and is not of this Workspace; it is left alone, delete or rename it`,
    };
  }
  const claim = {
    apiVersion: 'v1',
    kind: 'PersistentVolumeClaim',
    metadata: {
      name,
      namespace: namespace ?? '',
      labels: { [LABELS.managedBy]: MANAGER, [LABELS.workspace]: name, [LABELS.workspaceId]: row.workspace },
      ...(workspace.spec.deletionPolicy === 'Retain' ? {} : { ownerReferences: ownedBy(WORKSPACES, workspace, false) }),
    },
    spec: {
      accessModes: ['ReadWriteOnce'],
      resources: { requests: { storage: volume?.size ?? '10Gi' } },
      ...(volume?.storageClassName === undefined ? {} : { storageClassName: volume.storageClassName }),
    },
  };
  await deps.client.create(CLAIMS, claim, {}, signal);
  return { name };
}

/** How a container ended, for the owner that waits to say why its command is gone. */
async function recordTerminations(deps: Deps, row: SandboxActivity, pod: Pod): Promise<void> {
  for (const status of pod.status?.containerStatuses ?? []) {
    const terminated = status.state?.terminated ?? status.lastState?.terminated;
    if (terminated === undefined) continue;
    await deps.store.recordTermination({
      sandbox: row.id,
      podUid: pod.metadata.uid,
      container: status.name,
      restartCount: status.state?.terminated === undefined ? status.restartCount - 1 : status.restartCount,
      reason: terminated.reason ?? 'Unknown',
      ...(terminated.exitCode === undefined ? {} : { exitCode: terminated.exitCode }),
      ...(terminated.message === undefined ? {} : { message: terminated.message }),
    });
  }
}

async function report(
  deps: Deps,
  sandbox: Sandbox,
  seen: Observed,
  failure: Trouble | undefined,
  pod: Pod | undefined,
  row: SandboxActivity,
  signal: AbortSignal,
): Promise<void> {
  const generation = sandbox.metadata.generation ?? 0;
  const conditions = setConditions(
    (sandbox.status?.conditions ?? []) as readonly Condition[],
    sandboxConditions(seen, failure, generation),
    deps.now(),
  );
  const work = pod?.spec.containers.find((c) => c.name === 'work');
  const status: SandboxStatus = {
    observedGeneration: generation,
    phase: phaseOf(seen),
    conditions: conditions as Condition[],
    ...(seen.pod === undefined || seen.pod.terminating ? {} : { pod: seen.pod.name }),
    ...(pod?.spec.nodeName === undefined ? {} : { node: pod.spec.nodeName }),
    ...(row.synced_version === null ? {} : { syncedVersion: Number(row.synced_version) }),
    ...(work?.image === undefined
      ? {}
      : {
          shape: {
            image: work.image,
            cpu: String(work.resources?.limits?.['cpu'] ?? ''),
            memory: String(work.resources?.limits?.['memory'] ?? ''),
          },
        }),
  };
  await writeStatus(deps.client, SANDBOXES, sandbox, status, signal);
}

function ignoreMissing(error: unknown): void {
  // Gone already, or another one of that name: the uid did not fit.
  if (!(error instanceof KubeError && (error.status === 404 || error.status === 409))) throw error;
}
