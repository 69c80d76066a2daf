/** A cache of one kind that converges on what the API server has, whatever happens to its connections. */
import { setTimeout as delay } from 'node:timers/promises';
import type { KubeClient } from './client.ts';
import { isExpired, KubeError } from './errors.ts';
import { keyOf, refOf, type KubeObject, type Ref, type Resource } from './types.ts';

export type Change<T> = Readonly<{ type: 'added' | 'modified' | 'deleted'; object: T; old?: T }>;
export type Cache<T> = Readonly<{
  get(ref: Ref): T | undefined;
  list(): readonly T[];
  /** Whether it has ever been whole. */
  synced(): boolean;
  /** Since the server was last heard of on this watch. */
  staleForMs(): number;
}>;
export type ReflectorOptions<T> = Readonly<{
  namespace?: string;
  labelSelector?: string;
  fieldSelector?: string;
  onChange: (change: Change<T>) => void;
  onProblem?: (message: string, error: unknown) => void;
  pageSize?: number;
  /** Bookmarks come about once a minute: silence well beyond that is a dead connection. */
  idleTimeoutMs?: number;
  watchSeconds?: number;
  random?: () => number;
  now?: () => number;
}>;
export type Reflector<T> = Cache<T> & Readonly<{ whenSynced(signal: AbortSignal): Promise<void>; done: Promise<void> }>;

const MAX_RETRY_MS = 30_000;

/** Runs until the signal aborts. Nothing that a server or a network does ends it. */
export function startReflector<T extends KubeObject>(
  client: KubeClient,
  resource: Resource<T>,
  options: ReflectorOptions<T>,
  signal: AbortSignal,
): Reflector<T> {
  const objects = new Map<string, T>();
  const random = options.random ?? Math.random;
  const now = options.now ?? (() => performance.now());
  const waiting = new Set<() => void>();
  let synced = false;
  let heardAt = now();

  const set = (object: T) => {
    const key = keyOf(refOf(object));
    const old = objects.get(key);
    objects.set(key, object);
    if (old === undefined) options.onChange({ type: 'added', object });
    else if (old.metadata.resourceVersion !== object.metadata.resourceVersion)
      options.onChange({ type: 'modified', object, old });
  };
  const remove = (key: string, last: T) => {
    const old = objects.get(key);
    if (!objects.delete(key)) return;
    options.onChange({ type: 'deleted', object: last, ...(old === undefined ? {} : { old }) });
  };

  /** All pages, or none: a list that broke in the middle says nothing about deletions. */
  async function listAll(): Promise<string> {
    for (;;) {
      const found = new Map<string, T>();
      let token: string | undefined;
      let version = '';
      try {
        do {
          const page = await client.list(
            resource,
            {
              limit: options.pageSize ?? 500,
              ...pickSelectors(options),
              ...(token === undefined ? {} : { continue: token }),
            },
            signal,
          );
          for (const item of page.items) found.set(keyOf(refOf(item)), item);
          token = page.metadata.continue === '' ? undefined : page.metadata.continue;
          version = page.metadata.resourceVersion;
        } while (token !== undefined);
      } catch (error) {
        if (isExpired(error) && token !== undefined) continue;
        throw error;
      }
      // What is gone was deleted while nobody watched.
      for (const [key, last] of objects) if (!found.has(key)) remove(key, last);
      for (const object of found.values()) set(object);
      heardAt = now();
      synced = true;
      for (const wake of waiting) wake();
      return version;
    }
  }

  async function watchFrom(from: string): Promise<string> {
    let version = from;
    const seconds = options.watchSeconds ?? 240 + Math.floor(random() * 240);
    const events = client.watch(
      resource,
      {
        ...pickSelectors(options),
        resourceVersion: from,
        timeoutSeconds: seconds,
        idleTimeoutMs: options.idleTimeoutMs ?? 90_000,
      },
      signal,
    );
    for await (const event of events) {
      heardAt = now();
      switch (event.type) {
        case 'ERROR':
          throw new KubeError(
            event.object.code ?? 500,
            event.object.reason ?? 'Unknown',
            event.object.message ?? 'the watch reported an error',
          );
        case 'DELETED':
          remove(keyOf(refOf(event.object)), event.object);
          break;
        case 'ADDED':
        case 'MODIFIED':
          set(event.object);
          break;
        case 'BOOKMARK':
          break;
        default:
          // Garbage: what follows can't be trusted either.
          throw new Error(`the watch sent ${JSON.stringify(event).slice(0, 100)}`);
      }
      version = event.object.metadata.resourceVersion;
    }
    return version;
  }

  async function run(): Promise<void> {
    let version: string | undefined;
    for (let failures = 0; !signal.aborted;) {
      try {
        version ??= await listAll();
        version = await watchFrom(version);
        failures = 0;
      } catch (error) {
        if (signal.aborted) return;
        // Whatever broke, the cache may lack something: list again. One list is cheap beside a missed deletion.
        version = undefined;
        failures += 1;
        options.onProblem?.(`the watch of ${resource.plural} is started again`, error);
        const ms = isExpired(error) ? 0 : random() * Math.min(MAX_RETRY_MS, 100 * 2 ** Math.min(failures, 10));
        await delay(ms, undefined, { signal }).catch(() => undefined);
      }
    }
  }

  return {
    get: (ref) => objects.get(keyOf(ref)),
    list: () => [...objects.values()],
    synced: () => synced,
    staleForMs: () => now() - heardAt,
    done: run(),
    whenSynced: (until) =>
      new Promise((resolve, reject) => {
        if (synced) return resolve();
        const settle = () => {
          waiting.delete(settle);
          until.removeEventListener('abort', settle);
          if (synced) resolve();
          else reject(until.reason as Error);
        };
        waiting.add(settle);
        until.addEventListener('abort', settle, { once: true });
      }),
  };
}

function pickSelectors(o: ReflectorOptions<never>): {
  namespace?: string;
  labelSelector?: string;
  fieldSelector?: string;
} {
  return {
    ...(o.namespace === undefined ? {} : { namespace: o.namespace }),
    ...(o.labelSelector === undefined ? {} : { labelSelector: o.labelSelector }),
    ...(o.fieldSelector === undefined ? {} : { fieldSelector: o.fieldSelector }),
  };
}
