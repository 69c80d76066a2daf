/** The operator's work while it leads: caches, queues, and what wakes them. */
import { setTimeout as delay } from 'node:timers/promises';
import type { KubeClient } from '../kube/client.ts';
import { createEventRecorder } from '../kube/events.ts';
import { isNotFound } from '../kube/errors.ts';
import { startQueue, type Queue } from '../kube/queue.ts';
import { startReflector, type Change } from '../kube/reflector.ts';
import { keyOf, refOf, type KubeObject, type Ref, type Resource } from '../kube/types.ts';
import type { ControlStore, Dirty } from '../store/control-store.ts';
import { listen } from '../store/listen.ts';
import type { Logger } from '../telemetry/log.ts';
import type { Metrics } from '../telemetry/metrics.ts';
import { runApiService } from './api-service.ts';
import { ensureCertificates } from './certificates.ts';
import { reconcileClass } from './classes.ts';
import type { Deps, Settings } from './deps.ts';
import {
  CLASSES,
  LABELS,
  MANAGER,
  PODS,
  QUOTAS,
  SANDBOXES,
  TURNS,
  WORKSPACES,
  type Turn,
  type Workspace,
} from './resources.ts';
import { runRetention } from './records.ts';
import { reconcileQuota } from './quotas.ts';
import { reconcileSandbox } from './sandboxes.ts';
import { reconcileTurn, turnDeleted } from './turns.ts';
import { reconcileWorkspace } from './workspaces.ts';

export type ControllersOptions = Readonly<{
  client: KubeClient;
  store: ControlStore;
  databaseUrl: string;
  settings: Settings;
  log: Logger;
  metrics: Metrics;
}>;

const CERTIFICATES_MS = 3_600_000;
const DIRTY_POLL_MS = 1_000;
const SANDBOX_POLL_MS = 10_000;

export async function runControllers(options: ControllersOptions, signal: AbortSignal): Promise<void> {
  const { client, store, settings, log, metrics } = options;
  await ensureCertificates(client, settings, new Date(), signal);
  const events = createEventRecorder(client, 'lathe-operator', (err) =>
    log.debug('an event was not recorded', { err }),
  );

  const reflect = <T extends KubeObject>(
    resource: Resource<T>,
    onChange: (change: Change<T>) => void,
    labelSelector?: string,
  ) =>
    startReflector(
      client,
      resource,
      {
        onChange,
        onProblem: (message, err) => log.warn(message, { kind: resource.kind, err }),
        ...(labelSelector === undefined ? {} : { labelSelector }),
      },
      signal,
    );
  const queueOf = (
    kind: string,
    reconcile: (ref: Ref) => Promise<{ afterMs?: number } | void>,
    concurrency: number,
  ): Queue => {
    const queue = startQueue(
      {
        concurrency,
        reconcile: async (ref) => {
          metrics.reconciles.inc({ kind });
          return await reconcile(ref);
        },
        onError: (ref, err) => {
          metrics.reconcileErrors.inc({ kind });
          log.warn('a reconcile failed', { kind, name: ref.name, namespace: ref.namespace ?? '', err });
        },
      },
      signal,
    );
    return queue;
  };

  const classes = reflect(CLASSES, () => {
    for (const c of classes.list()) queues.class.add(refOf(c));
    for (const w of workspaces.list()) queues.workspace.add(refOf(w), { lane: 'low' });
  });
  const workspaces = reflect(WORKSPACES, ({ type, object, old }) => {
    const ref = refOf(object);
    if (type === 'deleted') return void gone(() => workspaceGone(object));
    // Our own status writes come back here: they say nothing new.
    if (type === 'added' || old?.metadata.generation !== object.metadata.generation) queues.workspace.add(ref);
    if (type === 'added' || old?.status?.effective === undefined) {
      queues.sandbox.add(ref);
      for (const turn of turns.list())
        if (turn.spec.workspace === ref.name && turn.metadata.namespace === ref.namespace && isOpen(turn))
          queues.turn.add(refOf(turn));
    }
  });
  const quotas = reflect(QUOTAS, ({ object }) => queues.quota.add(refOf(object), { lane: 'low' }));
  const turns = reflect(TURNS, ({ type, object, old }) => {
    if (type === 'deleted') return void gone(() => turnDeleted(deps, object));
    if (type === 'added' || old?.metadata.generation !== object.metadata.generation) queues.turn.add(refOf(object));
  });
  const sandboxes = reflect(SANDBOXES, ({ type, object, old }) => {
    if (type !== 'modified' || old?.metadata.generation !== object.metadata.generation)
      queues.sandbox.add(refOf(object));
  });
  const pods = reflect(
    PODS,
    ({ object }) => {
      const name = object.metadata.labels?.[LABELS.workspace];
      if (name !== undefined)
        queues.sandbox.add({
          ...(object.metadata.namespace === undefined ? {} : { namespace: object.metadata.namespace }),
          name,
        });
    },
    `${LABELS.managedBy}=${MANAGER}`,
  );
  const deps: Deps = {
    client,
    store,
    events,
    log,
    settings,
    workspaces,
    turns,
    sandboxes,
    classes,
    quotas,
    pods,
    now: () => new Date(),
  };

  /** What a row told us is dirty, until its status says it. */
  const dirty = new Map<string, Dirty>();
  const queues = {
    quota: queueOf('WorkspaceQuota', (ref) => reconcileQuota(deps, ref, signal), 1),
    class: queueOf('WorkspaceClass', (ref) => reconcileClass(deps, ref, signal), 1),
    workspace: queueOf(
      'Workspace',
      clearing('workspace', (ref) => reconcileWorkspace(deps, ref, signal)),
      4,
    ),
    turn: queueOf(
      'Turn',
      clearing('turn', (ref) => reconcileTurn(deps, ref, signal)),
      8,
    ),
    sandbox: queueOf(
      'Sandbox',
      clearing('sandbox', (ref) => reconcileSandbox(deps, ref, signal)),
      8,
    ),
  };

  function clearing(kind: Dirty['kind'], reconcile: (ref: Ref) => Promise<{ afterMs?: number } | void>) {
    return async (ref: Ref) => {
      const key = `${kind}/${keyOf(ref)}`;
      const seen = dirty.get(key);
      const result = await reconcile(ref);
      if (seen !== undefined) {
        // Only the generation that was seen: what came later is still to be written.
        if (dirty.get(key) === seen) dirty.delete(key);
        await store.clearDirty(seen);
      }
      return result;
    };
  }

  async function workspaceGone(workspace: Workspace): Promise<void> {
    // A cache can be wrong; a deletion is confirmed before it counts.
    const still = await client.get(WORKSPACES, refOf(workspace), signal).catch((error: unknown) => {
      if (isNotFound(error)) return undefined;
      throw error;
    });
    if (still?.metadata.uid !== workspace.metadata.uid) await store.markWorkspaceDeleted(workspace.metadata.uid);
  }

  function gone(work: () => Promise<void>): void {
    const attempt = async (): Promise<void> => {
      for (let wait = 200; !signal.aborted; wait = Math.min(30_000, wait * 2)) {
        try {
          return await work();
        } catch (err) {
          log.warn('a deletion is not recorded yet', { err });
          await delay(wait, undefined, { signal }).catch(() => undefined);
        }
      }
    };
    void attempt();
  }

  const caches = {
    WorkspaceClass: classes,
    Workspace: workspaces,
    Turn: turns,
    Sandbox: sandboxes,
    WorkspaceQuota: quotas,
    Pod: pods,
  };
  const staleness = setInterval(() => {
    for (const [kind, cache] of Object.entries(caches)) metrics.watchStale.set({ kind }, cache.staleForMs() / 1_000);
  }, 5_000);
  signal.addEventListener('abort', () => clearInterval(staleness), { once: true });

  // Wait for whole caches: acting on half of one would make what is there already.
  await Promise.all(Object.values(caches).map((cache) => cache.whenSynced(signal)));
  log.info('caches are whole', { count: workspaces.list().length });
  await Promise.all([
    project(),
    watchSandboxes(),
    renewCertificates(),
    runApiService({ client, settings, log }, signal),
    runRetention({ store, log }, signal),
    ...Object.values(queues).map((q) => q.done),
  ]);

  async function project(): Promise<void> {
    let wake: (() => void) | undefined;
    void listen(
      options.databaseUrl,
      ['lathe_projection', 'lathe_sandbox'],
      (channel, payload) => {
        if (channel === 'lathe_projection') wake?.();
        else if (payload !== '') void wakeSandbox(payload);
      },
      signal,
    );
    while (!signal.aborted) {
      try {
        for (const d of await store.takeDirty(500)) await enqueue(d);
      } catch (err) {
        log.warn('what changed could not be read', { err });
      }
      await new Promise<void>((resolve) => {
        const timer = setTimeout(done, DIRTY_POLL_MS);
        function done() {
          clearTimeout(timer);
          wake = undefined;
          resolve();
        }
        wake = done;
      });
    }
  }

  async function enqueue(d: Dirty): Promise<void> {
    const row =
      d.kind === 'turn'
        ? await store.turnProjection(d.id)
        : d.kind === 'workspace'
          ? await store.workspaceProjection(d.id)
          : undefined;
    if (row === undefined) return await store.clearDirty(d);
    const ref = { namespace: row.namespace, name: row.name };
    const known = d.kind === 'turn' ? turns.get(ref) : workspaces.get(ref);
    if (known === undefined) {
      // Its object is gone, or not seen yet; then its own arrival brings it here.
      return await store.clearDirty(d);
    }
    const key = `${d.kind}/${keyOf(ref)}`;
    if (dirty.get(key)?.generation === d.generation) return;
    dirty.set(key, d);
    queues[d.kind].add(ref, { lane: d.kind === 'turn' ? 'high' : 'low' });
  }

  async function wakeSandbox(workspace: string): Promise<void> {
    const row = await store.workspaceProjection(workspace).catch(() => undefined);
    if (row !== undefined) queues.sandbox.add({ namespace: row.namespace, name: row.name });
  }

  async function watchSandboxes(): Promise<void> {
    while (!signal.aborted) {
      const all = await store.sandboxesToLookAt().catch(() => []);
      for (const { namespace, name } of all) queues.sandbox.add({ namespace, name }, { lane: 'low' });
      await delay(SANDBOX_POLL_MS, undefined, { signal }).catch(() => undefined);
    }
  }

  async function renewCertificates(): Promise<void> {
    while (!signal.aborted) {
      await delay(CERTIFICATES_MS, undefined, { signal }).catch(() => undefined);
      if (!signal.aborted)
        await ensureCertificates(client, settings, new Date(), signal).catch((err: unknown) =>
          log.warn('certificates were not renewed', { err }),
        );
    }
  }
}

function isOpen(turn: Turn): boolean {
  return !['Completed', 'Blocked', 'Cancelled', 'Failed'].includes(turn.status?.phase ?? '');
}
