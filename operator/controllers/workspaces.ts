/** Workspaces: spec and class into a row, the seed with it, the row into the status. */
import type { WorkspaceSpec, WorkspaceStatus, EffectiveSpec } from '../../crds/types.ts';
import { setConditions, type Condition } from '../kube/conditions.ts';
import { isNotFound } from '../kube/errors.ts';
import type { Result } from '../kube/queue.ts';
import type { Ref } from '../kube/types.ts';
import type { WorkspaceProjection } from '../store/control-store.ts';
import type { SeedEntry } from '../store/workspace-store.ts';
import type { Deps } from './deps.ts';
import { effectiveOf, isProblem, resolveClass, type Problem } from './effective.ts';
import { CONFIG_MAPS, STORAGE_CLASSES, WORKSPACES, type Workspace } from './resources.ts';
import { recordFor } from './records.ts';
import { writeStatus } from './status.ts';
import { tenantOf } from './tenants.ts';

/** RESOURCES "Health": what only counts something is written at most this often. */
const QUIET_MS = 30_000;
const RETRY_MS = 5_000;
const written = new WeakMap<Deps, Map<string, number>>();

export async function reconcileWorkspace(deps: Deps, ref: Ref, signal: AbortSignal): Promise<Result> {
  const workspace = deps.workspaces.get(ref);
  if (workspace === undefined) return;
  const effective = await resolve(deps, workspace, signal);
  if (isProblem(effective)) return await report(deps, workspace, undefined, undefined, effective, signal);
  const { tenant, namespaceUid } = await tenantOf(deps, ref.namespace ?? '', signal);
  const record = await recordOf(deps, workspace, namespaceUid);
  if (isProblem(record)) return await report(deps, workspace, effective, undefined, record, signal);
  const row = await deps.store.upsertWorkspace({
    ...record,
    tenant,
    namespace: ref.namespace ?? '',
    name: ref.name,
    uid: workspace.metadata.uid,
    generation: workspace.metadata.generation ?? 0,
    class: effective.class,
    spec: workspace.spec,
    effective,
    hasSeed: workspace.spec.seed !== undefined,
  });
  const seed = row.seed_state === 'Pending' ? await seedOf(deps, workspace, signal) : undefined;
  if (seed !== undefined && !isProblem(seed)) await deps.store.putSeed(row.id, seed);
  const projection = await deps.store.workspaceProjection(row.id);
  return await report(
    deps,
    workspace,
    effective,
    projection,
    seed !== undefined && isProblem(seed) ? seed : undefined,
    signal,
  );
}

async function report(
  deps: Deps,
  workspace: Workspace,
  effective: EffectiveSpec | undefined,
  row: WorkspaceProjection | undefined,
  problem: Problem | undefined,
  signal: AbortSignal,
): Promise<Result> {
  const status = workspaceStatus(workspace, effective, row, problem, deps.now());
  const times = written.get(deps) ?? new Map<string, number>();
  written.set(deps, times);
  const sinceMs = deps.now().getTime() - (times.get(workspace.metadata.uid) ?? 0);
  const sameConditions =
    status.conditions === workspace.status?.conditions &&
    status.observedGeneration === workspace.status?.observedGeneration;
  if (sameConditions && sinceMs < QUIET_MS) return { afterMs: QUIET_MS - sinceMs };
  if (await writeStatus(deps.client, WORKSPACES, workspace, status, signal))
    times.set(workspace.metadata.uid, deps.now().getTime());
  if (problem !== undefined) deps.events.record(WORKSPACES, workspace, 'Warning', problem.reason, problem.message);
  return problem !== undefined ? { afterMs: RETRY_MS } : undefined;
}

/** Pure. The same conditions array when none changes. */
export function workspaceStatus(
  workspace: Workspace,
  effective: EffectiveSpec | undefined,
  row: WorkspaceProjection | undefined,
  problem: Problem | undefined,
  now: Date,
): WorkspaceStatus {
  const before = workspace.status ?? {};
  const generation = workspace.metadata.generation ?? 0;
  const [ready, reason, message] = verdict(row, problem);
  const of = (type: string, holds: boolean) =>
    ({ type, status: holds ? 'True' : 'False', reason, message, observedGeneration: generation }) as const;
  const stalled = problem !== undefined || row?.seed_state === 'Failed';
  const fallback = effective?.volume.mode === 'Ephemeral' && workspace.spec.volume?.mode !== 'Ephemeral';
  const conditions = setConditions(
    (before.conditions ?? []) as readonly Condition[],
    [
      of('Ready', ready),
      of('Reconciling', !ready && !stalled),
      of('Stalled', stalled),
      ...(fallback
        ? [
            {
              type: 'VolumeReady',
              status: 'False',
              reason: 'NoDefaultStorageClass',
              message:
                'the cluster has no default StorageClass (or the class says so): the volume is Ephemeral, files come from the store',
              observedGeneration: generation,
            } as const,
          ]
        : []),
    ],
    now,
  );
  const held =
    row === undefined ? {} : { id: row.id, head: Number(row.head), files: Number(row.files), bytes: Number(row.bytes) };
  const volume =
    effective === undefined
      ? {}
      : {
          volume: {
            mode: effective.volume.mode,
            ...(effective.volume.mode === 'Persistent' ? { claimName: workspace.metadata.name } : {}),
          },
        };
  return {
    observedGeneration: generation,
    conditions: conditions as Condition[],
    ...held,
    ...(row?.active_turn == null ? {} : { activeTurn: row.active_turn }),
    ...(row?.sandbox == null ? {} : { sandbox: row.sandbox }),
    ...volume,
    ...(effective === undefined ? {} : { effective }),
  };
}

function verdict(
  row: WorkspaceProjection | undefined,
  problem: Problem | undefined,
): [ready: boolean, reason: string, message: string] {
  if (problem !== undefined) return [false, problem.reason, problem.message];
  switch (row?.seed_state) {
    case 'Pending':
    case 'Ready':
      return [false, 'Seeding', row.seed_message ?? 'its first files are on their way'];
    case 'Failed':
      return [
        false,
        'SeedFailed',
        `seed: ${row.seed_error ?? 'it was refused'}; a seed can't be changed: make a new Workspace`,
      ];
    case 'None':
    case 'Done':
      return [true, 'Ready', 'turns can run'];
    default:
      return [false, 'Unknown', 'its record is not there yet'];
  }
}

async function resolve(deps: Deps, workspace: Workspace, signal: AbortSignal): Promise<EffectiveSpec | Problem> {
  const found = resolveClass(workspace.spec, workspace.metadata.namespace ?? '', deps.classes.list());
  if (isProblem(found)) return found;
  const effective = effectiveOf(workspace.spec, found.metadata.name, found.spec, deps.settings.sandboxImage);
  if (isProblem(effective) || effective.volume.mode === 'Ephemeral' || effective.volume.storageClassName !== undefined)
    return effective;
  return (await hasDefaultStorage(deps, signal))
    ? effective
    : { ...effective, volume: { ...effective.volume, mode: 'Ephemeral' } };
}

async function hasDefaultStorage(deps: Deps, signal: AbortSignal): Promise<boolean> {
  const { items } = await deps.client.list(STORAGE_CLASSES, { limit: 100 }, signal);
  return items.some((c) => c.metadata.annotations?.['storageclass.kubernetes.io/is-default-class'] === 'true');
}

async function recordOf(
  deps: Deps,
  { metadata, spec }: Workspace,
  namespaceUid: string,
): Promise<Readonly<{ adopt?: string }> | Problem> {
  const { uid, name, namespace = '' } = metadata;
  const { adoptFrom } = spec satisfies WorkspaceSpec;
  const asked = { uid, name, namespace, ...(adoptFrom === undefined ? {} : { adopt: adoptFrom }) };
  return recordFor({ uid, name, namespaceUid, adoptFrom }, await deps.store.findRecords(asked));
}

async function seedOf(deps: Deps, workspace: Workspace, signal: AbortSignal): Promise<readonly SeedEntry[] | Problem> {
  const source = (workspace.spec satisfies WorkspaceSpec).seed?.configMap;
  // The turn controller fetches all others; only what needs the Kubernetes API is read here.
  if (source === undefined) return [];
  const where = {
    ...(workspace.metadata.namespace === undefined ? {} : { namespace: workspace.metadata.namespace }),
    name: source.name,
  };
  const map = await deps.client.get(CONFIG_MAPS, where, signal).catch((error: unknown) => {
    if (isNotFound(error)) return undefined;
    throw error;
  });
  if (map === undefined)
    return {
      reason: 'NotFound',
      message: `seed: there is no ConfigMap ${source.name} in namespace ${where.namespace ?? ''}; it is looked for again every ${RETRY_MS / 1_000} s`,
    };
  const contents = new Map([
    ...Object.entries(map.data ?? {}).map(([key, text]) => [key, Buffer.from(text)] as const),
    ...Object.entries(map.binaryData ?? {}).map(([key, text]) => [key, Buffer.from(text, 'base64')] as const),
  ]);
  const entries: SeedEntry[] = [];
  for (const { key, path, executable } of source.items ??
    [...contents.keys()].map((k) => ({ key: k, path: k, executable: false }))) {
    const content = contents.get(key);
    if (content === undefined)
      return { reason: 'NotFound', message: `seed: ConfigMap ${source.name} has no key ${key}` };
    entries.push({ path, executable: executable ?? false, content });
  }
  return entries;
}
