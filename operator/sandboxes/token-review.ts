/** Whether a pod is who it says: TokenReview, remembered for a short while by hash. */
import { createHash } from 'node:crypto';
import type { Authenticate } from './attach-server.ts';

/** The API server's answer. @throws TransientError when it has none: that is not a refusal */
export type ReviewToken = (
  token: string,
  audience: string,
) => Promise<Readonly<{ authenticated: boolean; audiences: readonly string[]; podUid?: string }>>;

export const AUDIENCE = 'lathe.dev';
const CACHE_MS = 30_000;
const CACHED = 4_096;

export function tokenReviewer(review: ReviewToken, now: () => number = () => performance.now()): Authenticate {
  const cache = new Map<string, { podUid: string | undefined; at: number }>();
  return async (token) => {
    const key = createHash('sha256').update(token).digest('hex');
    const cached = cache.get(key);
    if (cached !== undefined && now() - cached.at < CACHE_MS)
      return cached.podUid === undefined ? undefined : { podUid: cached.podUid };
    const result = await review(token, AUDIENCE);
    const podUid = result.authenticated && result.audiences.includes(AUDIENCE) ? result.podUid : undefined;
    if (cache.size >= CACHED) cache.clear();
    cache.set(key, { podUid, at: now() });
    return podUid === undefined ? undefined : { podUid };
  };
}
