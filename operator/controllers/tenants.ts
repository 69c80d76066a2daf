/** The tenant of a namespace: our own id, bound to its uid, so that one of the same name made later is another. */
import type { Deps } from './deps.ts';
import { NAMESPACES } from './resources.ts';

const tenants = new WeakMap<Deps, Map<string, string>>();

export async function tenantOf(
  deps: Deps,
  namespace: string,
  signal: AbortSignal,
): Promise<Readonly<{ tenant: string; namespaceUid: string }>> {
  const object = await deps.client.get(NAMESPACES, { name: namespace }, signal);
  const known = tenants.get(deps) ?? new Map<string, string>();
  tenants.set(deps, known);
  const namespaceUid = object.metadata.uid;
  const tenant = known.get(namespaceUid) ?? (await deps.store.upsertTenant({ namespace, namespaceUid }));
  known.set(namespaceUid, tenant);
  return { tenant, namespaceUid };
}
