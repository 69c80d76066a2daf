/** One leader at a time, by a Lease (coordination.k8s.io). Work stops before anybody else can begin. */
import { setTimeout as delay } from 'node:timers/promises';
import type { KubeClient } from './client.ts';
import { isAlreadyExists, isConflict, isNotFound } from './errors.ts';
import type { KubeObject, Resource } from './types.ts';

type LeaseSpec = Readonly<{
  holderIdentity?: string;
  leaseDurationSeconds?: number;
  acquireTime?: string;
  renewTime?: string;
  leaseTransitions?: number;
}>;
type Lease = KubeObject<LeaseSpec>;
const LEASES: Resource<Lease> = {
  group: 'coordination.k8s.io',
  version: 'v1',
  plural: 'leases',
  kind: 'Lease',
  namespaced: true,
};

export type ElectionOptions = Readonly<{
  client: KubeClient;
  namespace: string;
  name: string;
  identity: string;
  /** Others wait this long after the last change that they saw (client-go's defaults). */
  leaseMs?: number;
  /** The leader stops this long after it sent its last good renewal. */
  renewMs?: number;
  retryMs?: number;
  onProblem?: (message: string, error: unknown) => void;
}>;

/**
 * Waits to lead, then runs `work` under a signal that aborts when leading ends; again and again until `signal` aborts,
 * and then releases the lease once `work` has ended.
 */
export async function runElected(
  options: ElectionOptions,
  work: (signal: AbortSignal) => Promise<void>,
  signal: AbortSignal,
): Promise<void> {
  const { client, namespace, name, identity } = options;
  const leaseMs = options.leaseMs ?? 15_000;
  const renewMs = options.renewMs ?? 10_000;
  const retryMs = options.retryMs ?? 2_000;
  /** What was seen and when, by our clock: the times in the lease are other machines'. */
  let seen: { version: string; at: number } | undefined;

  while (!signal.aborted) {
    const sentAt = performance.now();
    if (await tryLead()) await lead(sentAt);
    else await delay(retryMs * (0.8 + Math.random() * 0.4), undefined, { signal }).catch(() => undefined);
  }

  async function lead(firstAt: number): Promise<void> {
    const stop = new AbortController();
    const until = AbortSignal.any([signal, stop.signal]);
    const working = work(until).catch((error: unknown) => {
      if (!until.aborted) options.onProblem?.('the work of the leader ended', error);
    });
    const ended = working.then(() => stop.abort(new Error('the work ended')));
    let goodAt = firstAt;
    while (!until.aborted) {
      await delay(retryMs, undefined, { signal: until }).catch(() => undefined);
      if (until.aborted) break;
      const sentAt = performance.now();
      if (await tryLead(AbortSignal.timeout(Math.max(1, Math.round(renewMs - (sentAt - goodAt)))))) goodAt = sentAt;
      else if (performance.now() - goodAt >= renewMs || seen === undefined) stop.abort(new Error('the lease was lost'));
    }
    await Promise.all([working, ended]);
    if (performance.now() - goodAt < renewMs) await release();
  }

  async function tryLead(within: AbortSignal = AbortSignal.timeout(5_000)): Promise<boolean> {
    try {
      const found = await client.get(LEASES, { namespace, name }, within).catch((error: unknown) => {
        if (isNotFound(error)) return undefined;
        throw error;
      });
      const at = new Date().toISOString().replace('Z', '000Z');
      const spec = { holderIdentity: identity, leaseDurationSeconds: Math.round(leaseMs / 1_000), renewTime: at };
      if (found === undefined) {
        await client.create(
          LEASES,
          {
            apiVersion: 'coordination.k8s.io/v1',
            kind: 'Lease',
            metadata: { namespace, name },
            spec: { ...spec, acquireTime: at, leaseTransitions: 0 },
          },
          {},
          within,
        );
        return true;
      }
      const ours = found.spec.holderIdentity === identity;
      const free = found.spec.holderIdentity === undefined || found.spec.holderIdentity === '';
      if (!ours && !free) {
        if (seen?.version !== found.metadata.resourceVersion) {
          seen = { version: found.metadata.resourceVersion, at: performance.now() };
          return false;
        }
        if (performance.now() - seen.at < leaseMs) return false;
      }
      const taken = ours ? {} : { acquireTime: at, leaseTransitions: (found.spec.leaseTransitions ?? 0) + 1 };
      // The version decides between two who try at once.
      await client.mergePatch(
        LEASES,
        { namespace, name },
        { metadata: { resourceVersion: found.metadata.resourceVersion }, spec: { ...spec, ...taken } },
        within,
      );
      seen = { version: '', at: performance.now() };
      return true;
    } catch (error) {
      if (isConflict(error) || isAlreadyExists(error)) seen = undefined;
      else options.onProblem?.('the lease could not be had', error);
      return false;
    }
  }

  async function release(): Promise<void> {
    try {
      const found = await client.get(LEASES, { namespace, name }, AbortSignal.timeout(3_000));
      if (found.spec.holderIdentity !== identity) return;
      const patch = {
        metadata: { resourceVersion: found.metadata.resourceVersion },
        spec: { holderIdentity: '', leaseDurationSeconds: 1 },
      };
      await client.mergePatch(LEASES, { namespace, name }, patch, AbortSignal.timeout(3_000));
    } catch (error) {
      options.onProblem?.('the lease was not released; others wait for it to run out', error);
    }
  }
}
