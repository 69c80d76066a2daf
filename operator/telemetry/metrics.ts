/** Metrics, all at zero before anything happens: "none yet" and "broken" must not look alike. */
import { collectDefaultMetrics, Counter, Gauge, Histogram, Registry } from 'prom-client';

export type Metrics = Readonly<{
  registry: Registry;
  reconciles: Counter<'kind'>;
  reconcileErrors: Counter<'kind'>;
  turns: Counter<'phase'>;
  apiRequests: Histogram<'subresource' | 'verb' | 'code'>;
  ownedWorkspaces: Gauge;
  watchStale: Gauge<'kind'>;
}>;

const KINDS = ['WorkspaceClass', 'WorkspaceQuota', 'Workspace', 'Turn', 'Sandbox'];
const PHASES = ['Completed', 'Blocked', 'Cancelled', 'Failed'];

export function createMetrics(): Metrics {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  const registers = [registry];
  const metrics: Metrics = {
    registry,
    reconciles: new Counter({
      name: 'lathe_reconciles_total',
      help: 'Reconciles begun',
      labelNames: ['kind'],
      registers,
    }),
    reconcileErrors: new Counter({
      name: 'lathe_reconcile_errors_total',
      help: 'Reconciles that failed and are tried again',
      labelNames: ['kind'],
      registers,
    }),
    turns: new Counter({
      name: 'lathe_turns_total',
      help: 'Turns that ended here, by phase',
      labelNames: ['phase'],
      registers,
    }),
    watchStale: new Gauge({
      name: 'lathe_watch_stale_seconds',
      help: 'Since the API server was last heard of on the watch of a kind',
      labelNames: ['kind'],
      registers,
    }),
    apiRequests: new Histogram({
      name: 'lathe_api_request_duration_seconds',
      help: 'Requests to the live API',
      labelNames: ['subresource', 'verb', 'code'],
      buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
      registers,
    }),
    ownedWorkspaces: new Gauge({
      name: 'lathe_owned_workspaces',
      help: 'Workspaces that this replica owns',
      registers,
    }),
  };
  for (const kind of KINDS) {
    metrics.reconciles.inc({ kind }, 0);
    metrics.reconcileErrors.inc({ kind }, 0);
  }
  for (const kind of [...KINDS, 'Pod']) metrics.watchStale.set({ kind }, 0);
  for (const phase of PHASES) metrics.turns.inc({ phase }, 0);
  return metrics;
}
