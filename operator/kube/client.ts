/** The thin Kubernetes client: one shared agent, typed errors, every call under a signal. Knows nothing of Lathe. */
import type { KubeConfig } from '@kubernetes/client-node';
import { request, type Dispatcher } from 'undici';
import { agentOfKubeConfig, headersOfKubeConfig } from '../../proto/kubeconfig.ts';
import { TransientError } from '../errors.ts';
import { KubeError } from './errors.ts';
import {
  apiVersionOf,
  type KubeObject,
  type List,
  type NewObject,
  type Ref,
  type Resource,
  type WatchEvent,
} from './types.ts';

export type ListOptions = Readonly<{
  namespace?: string;
  labelSelector?: string;
  fieldSelector?: string;
  limit?: number;
  continue?: string;
  resourceVersion?: string;
}>;
export type WatchOptions = Readonly<{
  namespace?: string;
  labelSelector?: string;
  fieldSelector?: string;
  resourceVersion: string;
  timeoutSeconds: number;
  idleTimeoutMs?: number;
}>;
export type DeleteOptions = Readonly<{
  uid?: string;
  resourceVersion?: string;
  gracePeriodSeconds?: number;
  propagationPolicy?: 'Background' | 'Foreground' | 'Orphan';
}>;
export type KubeClient = AsyncDisposable &
  Readonly<{
    get<T extends KubeObject>(resource: Resource<T>, ref: Ref, signal?: AbortSignal): Promise<T>;
    /** One page; `metadata.continue` names the next. */
    list<T extends KubeObject>(resource: Resource<T>, options: ListOptions, signal?: AbortSignal): Promise<List<T>>;
    create<T extends KubeObject>(
      resource: Resource<T>,
      object: NewObject,
      options?: Readonly<{ dryRun?: boolean }>,
      signal?: AbortSignal,
    ): Promise<T>;
    /** Server-side apply as our field manager. */
    apply<T extends KubeObject>(
      resource: Resource<T>,
      object: NewObject,
      options?: Readonly<{ force?: boolean }>,
      signal?: AbortSignal,
    ): Promise<T>;
    mergePatch<T extends KubeObject>(resource: Resource<T>, ref: Ref, patch: object, signal?: AbortSignal): Promise<T>;
    /** Merge patch of the status. Name uid (and resourceVersion) in `metadata` to hit the object that was looked at, or none. */
    patchStatus<T extends KubeObject>(
      resource: Resource<T>,
      ref: Ref,
      patch: Readonly<{ metadata?: object; status: object }>,
      signal?: AbortSignal,
    ): Promise<T>;
    delete(resource: Resource, ref: Ref, options?: DeleteOptions, signal?: AbortSignal): Promise<void>;
    /** Ends with the server's timeout; throws on anything else, also when nothing came for `idleTimeoutMs`. */
    watch<T extends KubeObject>(
      resource: Resource<T>,
      options: WatchOptions,
      signal: AbortSignal,
    ): AsyncIterable<WatchEvent<T>>;
  }>;

const REQUEST_MS = 30_000;
/** Of one object on a watch: etcd takes 1.5 MiB, and JSON of a list item no more. */
export const MAX_LINE_BYTES = 16 * 1024 * 1024;

export function createKubeClient(
  options: Readonly<{ kubeConfig: KubeConfig; fieldManager: string; agent?: Dispatcher }>,
): KubeClient {
  const { kubeConfig, fieldManager } = options;
  const cluster = kubeConfig.getCurrentCluster();
  if (cluster === null) throw new Error('the kubeconfig has no current cluster');
  let own: Promise<Dispatcher> | undefined;
  const agentOf = () =>
    (own ??= options.agent === undefined ? agentOfKubeConfig(kubeConfig) : Promise.resolve(options.agent));
  const headersOf = headersOfKubeConfig(kubeConfig);

  async function call<T>(
    method: Dispatcher.HttpMethod,
    path: string,
    body: unknown,
    contentType: string,
    signal?: AbortSignal,
  ): Promise<T> {
    const until =
      signal === undefined
        ? AbortSignal.timeout(REQUEST_MS)
        : AbortSignal.any([signal, AbortSignal.timeout(REQUEST_MS)]);
    try {
      const response = await request(new URL(path, cluster?.server), {
        method,
        dispatcher: await agentOf(),
        signal: until,
        headers: {
          accept: 'application/json',
          ...(body === undefined ? {} : { 'content-type': contentType }),
          ...(await headersOf()),
        },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
      const text = await response.body.text();
      if (response.statusCode >= 400) throw errorOf(response.statusCode, text, response.headers['retry-after']);
      return JSON.parse(text) as T;
    } catch (error) {
      signal?.throwIfAborted();
      throw foreign(error, `${method} ${path}`);
    }
  }

  return {
    get: (resource, ref, signal) => call('GET', pathOf(resource, ref), undefined, '', signal),
    list: (resource, o, signal) =>
      call(
        'GET',
        `${pathOf(resource, { ...(o.namespace ? { namespace: o.namespace } : {}), name: '' })}${query(o)}`,
        undefined,
        '',
        signal,
      ),
    create: (resource, object, o = {}, signal) =>
      call(
        'POST',
        `${pathOf(resource, { ...nsOf(object), name: '' })}${query({ fieldManager, ...(o.dryRun ? { dryRun: 'All' } : {}) })}`,
        object,
        'application/json',
        signal,
      ),
    apply: (resource, object, o = {}, signal) =>
      call(
        'PATCH',
        `${pathOf(resource, { ...nsOf(object), name: object.metadata.name ?? '' })}${query({ fieldManager, force: String(o.force ?? true) })}`,
        { ...object, apiVersion: apiVersionOf(resource), kind: resource.kind },
        'application/apply-patch+yaml',
        signal,
      ),
    mergePatch: (resource, ref, patch, signal) =>
      call(
        'PATCH',
        `${pathOf(resource, ref)}${query({ fieldManager })}`,
        patch,
        'application/merge-patch+json',
        signal,
      ),
    patchStatus: (resource, ref, patch, signal) =>
      call(
        'PATCH',
        `${pathOf(resource, ref)}/status${query({ fieldManager })}`,
        patch,
        'application/merge-patch+json',
        signal,
      ),
    delete: async (resource, ref, o = {}, signal) => {
      const { uid, resourceVersion, ...rest } = o;
      const preconditions =
        uid === undefined && resourceVersion === undefined
          ? {}
          : { preconditions: { ...(uid ? { uid } : {}), ...(resourceVersion ? { resourceVersion } : {}) } };
      await call(
        'DELETE',
        pathOf(resource, ref),
        { apiVersion: 'v1', kind: 'DeleteOptions', ...preconditions, ...rest },
        'application/json',
        signal,
      );
    },
    watch: async function* <T extends KubeObject>(resource: Resource<T>, o: WatchOptions, signal: AbortSignal) {
      const { namespace, idleTimeoutMs, ...rest } = o;
      const path = `${pathOf(resource, { ...(namespace ? { namespace } : {}), name: '' })}${query({ ...rest, watch: 'true', allowWatchBookmarks: 'true' })}`;
      const idle = new AbortController();
      let timer: NodeJS.Timeout | undefined;
      const touch = () => {
        clearTimeout(timer);
        if (idleTimeoutMs !== undefined)
          timer = setTimeout(
            () =>
              idle.abort(
                new TransientError('Unknown', `the watch of ${resource.plural} was silent for ${idleTimeoutMs} ms`),
              ),
            idleTimeoutMs,
          );
      };
      touch();
      try {
        const response = await request(new URL(path, cluster.server), {
          method: 'GET',
          dispatcher: await agentOf(),
          signal: AbortSignal.any([signal, idle.signal]),
          headersTimeout: REQUEST_MS,
          bodyTimeout: 0,
          headers: { accept: 'application/json', ...(await headersOf()) },
        });
        if (response.statusCode >= 400)
          throw errorOf(response.statusCode, await response.body.text(), response.headers['retry-after']);
        for await (const line of linesOf(response.body as AsyncIterable<Buffer>, touch))
          yield JSON.parse(line) as WatchEvent<T>;
      } catch (error) {
        signal.throwIfAborted();
        if (idle.signal.aborted) throw idle.signal.reason;
        throw foreign(error, `watch of ${resource.plural}`);
      } finally {
        clearTimeout(timer);
      }
    },
    [Symbol.asyncDispose]: async () => {
      if (own !== undefined && options.agent === undefined) await (await own).destroy();
    },
  };
}

export async function* linesOf(body: AsyncIterable<Buffer>, touch: () => void): AsyncIterable<string> {
  let held: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of body) {
    touch();
    let from = 0;
    for (let at = chunk.indexOf(10); at !== -1; at = chunk.indexOf(10, from)) {
      const line = Buffer.concat([...held, chunk.subarray(from, at)]).toString('utf8');
      held = [];
      bytes = 0;
      from = at + 1;
      if (line.trim() !== '') yield line;
    }
    held.push(chunk.subarray(from));
    bytes += chunk.length - from;
    if (bytes > MAX_LINE_BYTES) throw new TransientError('Unknown', `a watch event is over ${MAX_LINE_BYTES} bytes`);
  }
  if (Buffer.concat(held).toString('utf8').trim() !== '')
    throw new TransientError('Unknown', 'a watch ended in the middle of an event');
}

function pathOf(resource: Resource, ref: Ref): string {
  const root = resource.group === '' ? `/api/${resource.version}` : `/apis/${resource.group}/${resource.version}`;
  const namespace =
    resource.namespaced && ref.namespace !== undefined ? `/namespaces/${encodeURIComponent(ref.namespace)}` : '';
  return `${root}${namespace}/${resource.plural}${ref.name === '' ? '' : `/${encodeURIComponent(ref.name)}`}`;
}

function nsOf(object: NewObject): { namespace?: string } {
  return object.metadata.namespace === undefined ? {} : { namespace: object.metadata.namespace };
}

function query(of: Readonly<Record<string, string | number | undefined>>): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(of))
    if (value !== undefined && name !== 'namespace') parameters.set(name, String(value));
  const text = parameters.toString();
  return text === '' ? '' : `?${text}`;
}

function errorOf(status: number, text: string, retryAfter: string | string[] | undefined): KubeError {
  const seconds = Number(Array.isArray(retryAfter) ? retryAfter[0] : retryAfter);
  const retryAfterMs = Number.isFinite(seconds) ? Math.min(seconds, 600) * 1_000 : undefined;
  try {
    const body = JSON.parse(text) as { reason?: string; message?: string };
    return new KubeError(
      status,
      body.reason ?? 'Unknown',
      body.message ?? `the API server answered ${status}`,
      retryAfterMs,
    );
  } catch {
    return new KubeError(status, 'Unknown', `the API server answered ${status}: ${text.slice(0, 200)}`, retryAfterMs);
  }
}

function foreign(error: unknown, what: string): unknown {
  if (error instanceof KubeError || error instanceof TransientError) return error;
  return new TransientError(
    'Unknown',
    `${what} did not reach the API server: ${error instanceof Error ? error.message : String(error)}`,
    { cause: error },
  );
}
