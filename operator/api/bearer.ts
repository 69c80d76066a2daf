/** Who asks, by a token of audience `lathe.dev`: TokenReview, remembered for seconds, and rationed for those who guess. */
import { createHash } from 'node:crypto';
import { TransientError } from '../errors.ts';
import type { Identity } from './authentication.ts';
import { createRate } from './rate.ts';

/** The API server's answer; undefined: the token is worth nothing. @throws TransientError when it has none */
export type ReviewUser = (token: string) => Promise<Identity | undefined>;
/** `source`: the address that the request came from. */
export type AuthenticateBearer = (authorization: string | undefined, source: string) => Promise<Identity | undefined>;

const CACHE_MS = 10_000;
/** Of either kind: tokens that are guessed don't push out those that are good. */
const CACHED = 4_096;
const MAX_TOKEN_CHARACTERS = 8_192;
/** Reviews that one address may cause (CONTRACTS 8); what is remembered costs none. */
const REVIEWS = { perSecond: 20, burst: 100 } as const;

type Review = Readonly<{ identity: Promise<Identity | undefined>; at: number }>;

export function bearerAuthenticator(
  review: ReviewUser,
  now: () => number = () => performance.now(),
): AuthenticateBearer {
  const asked = new Map<string, Review>();
  const refused = new Map<string, Review>();
  const mayReview = createRate(REVIEWS, now);
  return async (authorization, source) => {
    const token = /^Bearer ([\w\-.~+/]+=*)$/.exec(authorization ?? '')?.[1];
    if (token === undefined || token.length > MAX_TOKEN_CHARACTERS) return undefined;
    const key = createHash('sha256').update(token).digest('base64');
    const known = asked.get(key) ?? refused.get(key);
    if (known !== undefined && now() - known.at < CACHE_MS) return await known.identity;
    if (!mayReview(source))
      throw new TransientError(
        'TooManyRequests',
        `more than ${REVIEWS.perSecond} new tokens a second came from ${source}; use one token for many requests`,
      );
    const made = { identity: review(token), at: now() };
    keep(asked, key, made);
    try {
      const identity = await made.identity;
      if (identity === undefined) {
        asked.delete(key);
        keep(refused, key, made);
      }
      return identity;
    } catch (error) {
      // Neither yes nor no: the next request asks again.
      if (asked.get(key) === made) asked.delete(key);
      throw error;
    }
  };
}

/** A Map keeps the order of insertion: the oldest goes. */
function keep(cache: Map<string, Review>, key: string, value: Review): void {
  cache.delete(key);
  for (const oldest of cache.keys()) {
    if (cache.size < CACHED) break;
    cache.delete(oldest);
  }
  cache.set(key, value);
}
