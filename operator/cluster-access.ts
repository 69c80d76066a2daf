/** The turn controller's few rights in Kubernetes: token reviews, and Secrets that it was given by name. */
import { setTimeout as delay } from 'node:timers/promises';
import { PermanentError, TransientError } from './errors.ts';
import type { ReadTenantSecret } from './files/seeds/source.ts';
import type { KubeClient } from './kube/client.ts';
import { classify, isForbidden, isNotFound } from './kube/errors.ts';
import type { KubeObject, Resource } from './kube/types.ts';
import type { ReadSecret } from './models/registry.ts';
import type { Tls } from './sandboxes/attach-server.ts';
import type { ReviewToken } from './sandboxes/token-review.ts';
import type { Logger } from './telemetry/log.ts';

type Secret = KubeObject & Readonly<{ data?: Readonly<Record<string, string>> }>;
type TokenReview = KubeObject<
  unknown,
  Readonly<{
    authenticated?: boolean;
    audiences?: readonly string[];
    user?: { extra?: Readonly<Record<string, readonly string[]>> };
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
const POD_UID = 'authentication.kubernetes.io/pod-uid';

export function reviewTokenOf(client: KubeClient): ReviewToken {
  return async (token, audience) => {
    const review = {
      apiVersion: 'authentication.k8s.io/v1',
      kind: 'TokenReview',
      metadata: {},
      spec: { token, audiences: [audience] },
    };
    const { status } = await client.create(TOKEN_REVIEWS, review, {}, AbortSignal.timeout(5_000));
    const podUid = status?.user?.extra?.[POD_UID]?.[0];
    return {
      authenticated: status?.authenticated === true,
      audiences: status?.audiences ?? [],
      ...(podUid === undefined ? {} : { podUid }),
    };
  };
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
  log: Logger,
  signal: AbortSignal,
): Promise<Tls> {
  for (let attempt = 0; ; attempt += 1) {
    try {
      const { data } = await client.get(SECRETS, { namespace, name: 'lathe-turns-tls' }, signal);
      const pem = (key: string) => Buffer.from(data?.[key] ?? '', 'base64');
      return { ca: pem('ca.crt'), certificate: pem('tls.crt'), key: pem('tls.key') };
    } catch (err) {
      signal.throwIfAborted();
      if (attempt % 20 === 0) log.info('waiting for the certificate that the operator issues', { err });
      await delay(500, undefined, { signal });
    }
  }
}
