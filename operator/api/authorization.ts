/** Whether somebody may: the cluster's own RBAC, by SubjectAccessReview, remembered for seconds. */
import { createHash } from 'node:crypto';
import { escapeName } from '../../proto/paths.ts';
import { PermanentError } from '../errors.ts';
import type { Identity } from './authentication.ts';

export type Attributes = Readonly<{
  group: string;
  resource: string;
  subresource?: string;
  verb: string;
  namespace: string;
  name: string;
}>;
/** @throws TransientError when the API server has no answer: that is neither yes nor no */
export type ReviewAccess = (
  identity: Identity,
  attributes: Attributes,
) => Promise<Readonly<{ allowed: boolean; reason: string }>>;
export type Authorizer = Readonly<{
  allows(identity: Identity, attributes: Attributes): Promise<boolean>;
  /** @throws PermanentError Forbidden */
  demand(identity: Identity, attributes: Attributes): Promise<void>;
}>;

/** RESOURCES "The live API": a right that was taken away is gone within these. */
const ALLOWED_MS = 10_000;
const REFUSED_MS = 2_000;
const CACHED = 10_000;

export function createAuthorizer(review: ReviewAccess, now: () => number = () => performance.now()): Authorizer {
  const cache = new Map<string, { allowed: boolean; reason: string; until: number }>();
  /** Those that are under way: many requests of one client are one review. */
  const asking = new Map<string, Promise<{ allowed: boolean; reason: string }>>();
  const ask = async (identity: Identity, attributes: Attributes) => {
    const key = createHash('sha256')
      .update(JSON.stringify([identity, attributes]))
      .digest('base64');
    const cached = cache.get(key);
    if (cached !== undefined && cached.until > now()) return cached;
    const under = asking.get(key);
    if (under !== undefined) return await under;
    const reviewed = review(identity, attributes).finally(() => asking.delete(key));
    asking.set(key, reviewed);
    const { allowed, reason } = await reviewed;
    // The oldest first: a Map keeps the order of insertion.
    cache.delete(key);
    for (const old of cache.keys()) {
      if (cache.size < CACHED) break;
      cache.delete(old);
    }
    const answer = { allowed, reason, until: now() + (allowed ? ALLOWED_MS : REFUSED_MS) };
    cache.set(key, answer);
    return answer;
  };
  return {
    allows: async (identity, attributes) => (await ask(identity, attributes)).allowed,
    demand: async (identity, attributes) => {
      const { allowed, reason } = await ask(identity, attributes);
      if (allowed) return;
      const { verb, resource, subresource, group, namespace, name } = attributes;
      const what = subresource === undefined ? resource : `${resource}/${subresource}`;
      throw new PermanentError(
        'Forbidden',
        `${what}.${group} "${name}" is forbidden: user ${escapeName(identity.user)} can't ${verb} resource "${what}" in API group ` +
          `"${group}" in the namespace "${namespace}"${reason === '' ? '' : `: ${shown(reason)}`}; ask for a RoleBinding to lathe-user`,
      );
    },
  };
}

/** An authorizer's own words, which may quote a name. */
function shown(reason: string): string {
  return escapeName(reason).slice(1, -1);
}
