/** WorkspaceQuotas: the lowest of a namespace into a row, which every commit is held against; what is used into the status. */
import { parseQuantity } from '../../crds/quantity.ts';
import { setConditions, type Condition } from '../kube/conditions.ts';
import type { Result } from '../kube/queue.ts';
import type { Ref } from '../kube/types.ts';
import type { Deps } from './deps.ts';
import { QUOTAS, type WorkspaceQuota } from './resources.ts';
import { writeStatus } from './status.ts';
import { tenantOf } from './tenants.ts';

/** How often what is used is written anew. */
const REFRESH_MS = 30_000;

/** Pure. Bytes; undefined: no limit. */
export function lowestOf(quotas: readonly WorkspaceQuota[]): number | undefined {
  const limits = quotas.flatMap(({ spec }) => {
    const bytes = spec.hard.storedBytes === undefined ? undefined : parseQuantity(spec.hard.storedBytes);
    return bytes === undefined ? [] : [Math.floor(bytes)];
  });
  return limits.length === 0 ? undefined : Math.min(...limits);
}

export async function reconcileQuota(deps: Deps, ref: Ref, signal: AbortSignal): Promise<Result> {
  const of = deps.quotas.list().filter(({ metadata }) => metadata.namespace === ref.namespace);
  const { tenant } = await tenantOf(deps, ref.namespace ?? '', signal);
  await deps.store.putQuota(tenant, lowestOf(of));
  const found = deps.quotas.get(ref);
  if (found === undefined) return;
  const generation = found.metadata.generation ?? 0;
  const used = await deps.store.storedBytes(tenant);
  const conditions = setConditions(
    (found.status?.conditions ?? []) as readonly Condition[],
    [{ type: 'Ready', status: 'True', reason: 'Ready', message: '', observedGeneration: generation }],
    deps.now(),
  );
  const status = {
    observedGeneration: generation,
    conditions,
    hard: { ...found.spec.hard },
    used: { storedBytes: String(used) },
  };
  await writeStatus(deps.client, QUOTAS, found, status, signal);
  return { afterMs: REFRESH_MS };
}
