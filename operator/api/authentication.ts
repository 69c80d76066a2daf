/** Who asks, by the word of the API server's front proxy. */
import { isUtf8 } from 'node:buffer';

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
  /** Kubernetes 1.32 and later; where none is named a uid is nobody's word. */
  uidHeaders: readonly string[];
  extraPrefixes: readonly string[];
}>;
/** Each line of a header by itself, names in lower case: `IncomingMessage.headersDistinct`. */
export type HeaderLines = Readonly<Record<string, readonly string[] | undefined>>;

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
    uidHeaders: list('requestheader-uid-headers'),
    extraPrefixes: list('requestheader-extra-headers-prefix'),
  };
}

/** `commonName`: of a client certificate that chains to the request header CA; undefined: there is none. Pure. */
export function frontProxyIdentity(
  headers: HeaderLines,
  commonName: string | undefined,
  config: RequestHeaderConfig,
): Identity | undefined {
  if (commonName === undefined) return undefined;
  if (config.allowedNames.length > 0 && !config.allowedNames.includes(commonName)) return undefined;
  // A line is one value, whatever is in it: split at commas, `dev, system:masters` would be two groups.
  const lines = (name: string) => (headers[name.toLowerCase()] ?? []).map(textOf).filter((line) => line !== '');
  const user = config.userHeaders.flatMap(lines)[0];
  if (user === undefined) return undefined;
  const extra = new Map<string, readonly string[]>();
  for (const prefix of config.extraPrefixes.map((p) => p.toLowerCase()))
    for (const name of Object.keys(headers))
      if (name.startsWith(prefix)) extra.set(decoded(name.slice(prefix.length)), lines(name));
  const uid = config.uidHeaders.flatMap(lines)[0];
  return {
    user,
    ...(uid === undefined ? {} : { uid }),
    groups: config.groupHeaders.flatMap(lines),
    extra: Object.fromEntries(extra),
  };
}

/** The API server sends UTF-8; Node reads a header byte by byte. */
function textOf(line: string): string {
  const bytes = Buffer.from(line, 'latin1');
  return isUtf8(bytes) ? bytes.toString('utf8') : line;
}

/** As the API server does: what is not encoded well is taken as it is. */
function decoded(key: string): string {
  try {
    return decodeURIComponent(key);
  } catch {
    return key;
  }
}
