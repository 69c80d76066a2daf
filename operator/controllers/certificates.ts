/** The installation's own authority, and the leaves of its processes, as Secrets in its namespace (CONTRACTS 8). */
import { isAlreadyExists, isNotFound } from '../kube/errors.ts';
import type { KubeClient } from '../kube/client.ts';
import { issueLeaf, needsRenewal, newAuthority, type LeafRequest, type Pair } from './certificate-authority.ts';
import type { Settings } from './deps.ts';
import { LABELS, MANAGER, SECRETS } from './resources.ts';

export const AUTHORITY_SECRET = 'lathe-ca';
export const TURNS_SECRET = 'lathe-turns-tls';
export const API_SECRET = 'lathe-api-tls';
export const API_SERVICE = 'lathe-api';
/** For programs that an administrator trusts with the turn controller's API: the demo, the benches, later the live API. */
export const CLIENT_SECRET = 'lathe-client-tls';

/** Makes what is missing and renews what is due. Running it again changes nothing. */
export async function ensureCertificates(
  client: KubeClient,
  settings: Settings,
  now: Date,
  signal: AbortSignal,
): Promise<void> {
  const authority = await ensureAuthority(client, settings.namespace, now, signal);
  const { turnsService, namespace } = settings;
  for (const [secretName, service] of [
    [TURNS_SECRET, turnsService],
    [API_SECRET, API_SERVICE],
  ] as const) {
    const request = { commonName: service, names: namesOf(service, namespace) };
    await ensureLeaf(client, namespace, secretName, authority, request, now, signal);
  }
  await ensureLeaf(
    client,
    namespace,
    CLIENT_SECRET,
    authority,
    { commonName: 'lathe-client', names: ['lathe-client'] },
    now,
    signal,
  );
}

function namesOf(service: string, namespace: string): string[] {
  return [
    service,
    `${service}.${namespace}`,
    `${service}.${namespace}.svc`,
    `${service}.${namespace}.svc.cluster.local`,
  ];
}

async function ensureAuthority(client: KubeClient, namespace: string, now: Date, signal: AbortSignal): Promise<Pair> {
  const found = await read(client, namespace, AUTHORITY_SECRET, signal);
  if (found !== undefined) return found;
  const made = await newAuthority(now);
  try {
    await client.create(SECRETS, secret(namespace, AUTHORITY_SECRET, made, made.certificate), {}, signal);
    return made;
  } catch (error) {
    // A leader before us was quicker; what it made holds.
    const theirs = isAlreadyExists(error) ? await read(client, namespace, AUTHORITY_SECRET, signal) : undefined;
    if (theirs === undefined) throw error;
    return theirs;
  }
}

async function ensureLeaf(
  client: KubeClient,
  namespace: string,
  name: string,
  authority: Pair,
  request: LeafRequest,
  now: Date,
  signal: AbortSignal,
): Promise<void> {
  const found = await read(client, namespace, name, signal);
  if (found !== undefined && !needsRenewal(found.certificate, authority.certificate, now)) return;
  const leaf = secret(namespace, name, await issueLeaf(authority, request, now), authority.certificate);
  if (found === undefined) await client.create(SECRETS, leaf, {}, signal);
  else await client.mergePatch(SECRETS, { namespace, name }, { data: leaf.data }, signal);
}

async function read(
  client: KubeClient,
  namespace: string,
  name: string,
  signal: AbortSignal,
): Promise<Pair | undefined> {
  const found = await client.get(SECRETS, { namespace, name }, signal).catch((error: unknown) => {
    if (isNotFound(error)) return undefined;
    throw error;
  });
  if (found === undefined) return undefined;
  const text = (key: string) => Buffer.from(found.data?.[key] ?? '', 'base64').toString('utf8');
  return { certificate: text('tls.crt'), key: text('tls.key') };
}

function secret(namespace: string, name: string, pair: Pair, authority: string) {
  const base64 = (text: string) => Buffer.from(text).toString('base64');
  return {
    apiVersion: 'v1',
    kind: 'Secret',
    type: 'kubernetes.io/tls',
    metadata: { name, namespace, labels: { [LABELS.managedBy]: MANAGER } },
    data: { 'tls.crt': base64(pair.certificate), 'tls.key': base64(pair.key), 'ca.crt': base64(authority) },
  };
}
