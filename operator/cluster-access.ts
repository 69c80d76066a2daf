/** The few rights of turns and api in Kubernetes: reviews of tokens and access, and what they were given by name. */
import { setTimeout as delay } from 'node:timers/promises';
import { requestHeaderConfigOf, type RequestHeaderConfig } from './api/authentication.ts';
import type { ReviewAccess } from './api/authorization.ts';
import type { ReviewUser } from './api/bearer.ts';
import { PermanentError, TransientError } from './errors.ts';
import type { ReadTenantSecret } from './files/seeds/source.ts';
import type { KubeClient } from './kube/client.ts';
import { classify, isForbidden, isNotFound } from './kube/errors.ts';
import type { KubeObject, Resource } from './kube/types.ts';
import type { ReadSecret } from './models/registry.ts';
import type { Tls } from './sandboxes/attach-server.ts';
import { AUDIENCE, type ReviewToken } from './sandboxes/token-review.ts';
import type { Logger } from './telemetry/log.ts';

type Secret = KubeObject & Readonly<{ data?: Readonly<Record<string, string>> }>;
type TokenReview = KubeObject<
  unknown,
  Readonly<{
    authenticated?: boolean;
    audiences?: readonly string[];
    user?: {
      username?: string;
      uid?: string;
      groups?: readonly string[];
      extra?: Readonly<Record<string, readonly string[]>>;
    };
  }>
>;

const SECRETS: Resource<Secret> = { group: '', version: 'v1', plural: 'secrets', kind: 'Secret', namespaced: true };
const TOKEN_REVIEWS: Resource<TokenReview> = {
  group: 'authentication.k8s.io',
  version: 'v1',
  plural: 'tokenreviews',
  kind: 'TokenReview',
  namespaced: false,
};
const ACCESS_REVIEWS: Resource<KubeObject<unknown, Readonly<{ allowed?: boolean; reason?: string }>>> = {
  group: 'authorization.k8s.io',
  version: 'v1',
  plural: 'subjectaccessreviews',
  kind: 'SubjectAccessReview',
  namespaced: false,
};
const CONFIG_MAPS: Resource<Secret> = {
  group: '',
  version: 'v1',
  plural: 'configmaps',
  kind: 'ConfigMap',
  namespaced: true,
};
const POD_UID = 'authentication.kubernetes.io/pod-uid';

export function reviewTokenOf(client: KubeClient): ReviewToken {
  return async (token, audience) => {
    const status = await reviewOf(client, token, audience);
    const podUid = status?.user?.extra?.[POD_UID]?.[0];
    return {
      authenticated: status?.authenticated === true,
      audiences: status?.audiences ?? [],
      ...(podUid === undefined ? {} : { podUid }),
    };
  };
}

async function reviewOf(client: KubeClient, token: string, audience: string) {
  const review = {
    apiVersion: 'authentication.k8s.io/v1',
    kind: 'TokenReview',
    metadata: {},
    spec: { token, audiences: [audience] },
  };
  return (await client.create(TOKEN_REVIEWS, review, {}, AbortSignal.timeout(5_000))).status;
}

export function reviewUserOf(client: KubeClient): ReviewUser {
  return async (token) => {
    const status = await reviewOf(client, token, AUDIENCE).catch(unanswered);
    const user = status?.user;
    if (status?.authenticated !== true || status.audiences?.includes(AUDIENCE) !== true) return undefined;
    if (user?.username === undefined) return undefined;
    const { username, uid, groups = [], extra = {} } = user;
    return { user: username, groups, extra, ...(uid === undefined ? {} : { uid }) };
  };
}

export function reviewAccessOf(client: KubeClient): ReviewAccess {
  return async ({ user, uid, groups, extra }, resourceAttributes) => {
    const review = {
      apiVersion: 'authorization.k8s.io/v1',
      kind: 'SubjectAccessReview',
      metadata: {},
      spec: { user, uid, groups, extra, resourceAttributes },
    };
    const { status } = await client.create(ACCESS_REVIEWS, review, {}, AbortSignal.timeout(5_000)).catch(unanswered);
    return { allowed: status?.allowed === true, reason: status?.reason ?? '' };
  };
}

/** Whatever it said instead of an answer is about us: to who asks it is neither yes nor no. */
function unanswered(cause: unknown): never {
  throw new TransientError('ServiceUnavailable', 'the API server did not say who this is or what they may; ask again', {
    cause,
  });
}

/** As the API server publishes it. @throws Error while it says nothing that can be used */
export async function readRequestHeaderConfig(client: KubeClient, signal: AbortSignal): Promise<RequestHeaderConfig> {
  const ref = { namespace: 'kube-system', name: 'extension-apiserver-authentication' };
  return requestHeaderConfigOf((await client.get(CONFIG_MAPS, ref, signal)).data ?? {});
}

/** Read each time it is needed and kept nowhere: a key that was replaced holds from the next request on. */
export function readSecretOf(client: KubeClient, namespace: string): ReadSecret {
  return async (name, key) => {
    const secret = await client
      .get(SECRETS, { namespace, name }, AbortSignal.timeout(10_000))
      .catch((error: unknown) => {
        if (isNotFound(error))
          throw new PermanentError(
            'ModelAuthFailed',
            `there is no Secret ${namespace}/${name}; make it, with key ${key}`,
            { cause: error },
          );
        if (isForbidden(error))
          throw new PermanentError(
            'ModelAuthFailed',
            `the turn controller may not read Secret ${namespace}/${name}; name it in the chart's model.secretName`,
            { cause: error },
          );
        throw error;
      });
    const data = secret.data?.[key];
    if (data === undefined)
      throw new PermanentError('ModelAuthFailed', `Secret ${namespace}/${name} has no key ${key}`);
    return Buffer.from(data, 'base64').toString('utf8').trim();
  };
}

/** Which hosts a Secret may be sent to, separated by spaces or commas. Absent: any that a seed names. */
const HOSTS_ANNOTATION = 'lathe.dev/hosts';

/**
 * A tenant's own Secret, which a tenant's own Role lets this account get by name. What is missing is for the tenant to
 * make, so all of it is for later. @param account this process's ServiceAccount, as NAMESPACE:NAME
 */
export function readTenantSecretOf(client: KubeClient, account: string): ReadTenantSecret {
  return async (namespace, name) => {
    const secret = await client
      .get(SECRETS, { namespace, name }, AbortSignal.timeout(10_000))
      .catch((cause: unknown) => {
        if (isNotFound(cause))
          throw new TransientError('NotFound', `there is no Secret ${name} in namespace ${namespace}; make it`, {
            cause,
          });
        if (isForbidden(cause))
          throw new TransientError(
            'Forbidden',
            `Lathe may not get Secret ${namespace}/${name}; allow it: kubectl -n ${namespace} create role lathe-secret-${name} --verb=get --resource=secrets --resource-name=${name} && kubectl -n ${namespace} create rolebinding lathe-secret-${name} --role=lathe-secret-${name} --serviceaccount=${account}`,
            { cause },
          );
        throw classify(cause);
      });
    const data = new Map(Object.entries(secret.data ?? {}).map(([key, text]) => [key, Buffer.from(text, 'base64')]));
    const hosts = secret.metadata.annotations?.[HOSTS_ANNOTATION]?.split(/[\s,]+/).filter((host) => host !== '');
    return { data, ...(hosts === undefined ? {} : { hosts }) };
  };
}

/** The operator issues it; asked for by name, which is quicker than a mount and sees a renewal. */
export async function waitForTls(
  client: KubeClient,
  namespace: string,
  name: string,
  log: Logger,
  signal: AbortSignal,
): Promise<Tls> {
  for (let attempt = 0; ; attempt += 1) {
    try {
      const { data } = await client.get(SECRETS, { namespace, name }, signal);
      const pem = (key: string) => Buffer.from(data?.[key] ?? '', 'base64');
      return { ca: pem('ca.crt'), certificate: pem('tls.crt'), key: pem('tls.key') };
    } catch (err) {
      signal.throwIfAborted();
      if (attempt % 20 === 0) log.info('waiting for the certificate that the operator issues', { err });
      await delay(500, undefined, { signal });
    }
  }
}
