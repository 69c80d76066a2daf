/** Who asks: by the API server's front proxy, or by a token of audience `lathe.dev`. */
import { createHash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';

export type Identity = Readonly<{
  user: string;
  uid?: string;
  groups: readonly string[];
  extra: Readonly<Record<string, readonly string[]>>;
}>;

/** ConfigMap kube-system/extension-apiserver-authentication. */
export type RequestHeaderConfig = Readonly<{
  ca: string;
  /** Common names that may speak for others; empty: any under the CA. */
  allowedNames: readonly string[];
  userHeaders: readonly string[];
  groupHeaders: readonly string[];
  extraPrefixes: readonly string[];
}>;

/** @throws Error that names the key that is missing: without it nobody is believed */
export function requestHeaderConfigOf(data: Readonly<Record<string, string>>): RequestHeaderConfig {
  const list = (key: string): string[] => {
    const value: unknown = JSON.parse(data[key] ?? '[]');
    return Array.isArray(value) ? value.filter((item) => typeof item === 'string') : [];
  };
  const ca = data['requestheader-client-ca-file'];
  if (ca === undefined || ca === '')
    throw new Error('ConfigMap kube-system/extension-apiserver-authentication has no requestheader-client-ca-file');
  return {
    ca,
    allowedNames: list('requestheader-allowed-names'),
    userHeaders: list('requestheader-username-headers'),
    groupHeaders: list('requestheader-group-headers'),
    extraPrefixes: list('requestheader-extra-headers-prefix'),
  };
}

/**
 * `headers`: line by line; joined, a group named `a, b` would be two. `commonName`: of a client certificate that chains to the request header CA; undefined: there is none. Pure.
 */
export function frontProxyIdentity(
  headers: IncomingMessage['headersDistinct'],
  commonName: string | undefined,
  config: RequestHeaderConfig,
): Identity | undefined {
  if (commonName === undefined) return undefined;
  if (config.allowedNames.length > 0 && !config.allowedNames.includes(commonName)) return undefined;
  const values = (name: string) => headers[name.toLowerCase()] ?? [];
  const user = config.userHeaders.flatMap(values)[0];
  if (user === undefined || user === '') return undefined;
  const extra: Record<string, string[]> = {};
  for (const prefix of config.extraPrefixes.map((p) => p.toLowerCase()))
    for (const [name, value] of Object.entries(headers))
      if (name.startsWith(prefix)) extra[decodeURIComponent(name.slice(prefix.length))] = value ?? [];
  const uid = values('x-remote-uid')[0];
  return { user, ...(uid === undefined ? {} : { uid }), groups: config.groupHeaders.flatMap(values), extra };
}

/** The API server's answer about a token of audience `lathe.dev`. @throws TransientError when it has none */
export type ReviewUser = (token: string) => Promise<Identity | undefined>;

const CACHE_MS = 10_000;
const CACHED = 4_096;

/** Remembered for a short while, by hash. */
export function bearerAuthenticator(review: ReviewUser, now: () => number = () => performance.now()) {
  const cache = new Map<string, { identity: Identity | undefined; at: number }>();
  return async (authorization: string | undefined): Promise<Identity | undefined> => {
    const token = /^Bearer ([\w\-.~+/]+=*)$/.exec(authorization ?? '')?.[1];
    if (token === undefined || token.length > 8_192) return undefined;
    const key = createHash('sha256').update(token).digest('hex');
    const cached = cache.get(key);
    if (cached !== undefined && now() - cached.at < CACHE_MS) return cached.identity;
    const identity = await review(token);
    if (cache.size >= CACHED) cache.clear();
    cache.set(key, { identity, at: now() });
    return identity;
  };
}
