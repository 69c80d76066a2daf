/** `lathe operator | turns | api | migrate`: one program, one subcommand per role. Wiring, nothing else. */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { KubeConfig } from '@kubernetes/client-node';
import { parseQuantity } from '../crds/quantity.ts';
import type { RequestHeaderConfig } from './api/authentication.ts';
import { createAuthorizer } from './api/authorization.ts';
import { bearerAuthenticator } from './api/bearer.ts';
import { connectOwner } from './api/owner.ts';
import { startApi } from './api/server.ts';
import { readApiConfig, readMigrateConfig, readOperatorConfig, readTurnsConfig } from './config.ts';
import { runControllers } from './controllers/run.ts';
import { createHub } from './harness/hub.ts';
import { createTurnLoop } from './harness/turn-loop.ts';
import { startTurnsService } from './harness/turns-service.ts';
import { createKubeClient } from './kube/client.ts';
import { runElected } from './kube/election.ts';
import { resolveModel } from './models/registry.ts';
import { startAttachServer } from './sandboxes/attach-server.ts';
import { createExecutor, type Executor } from './sandboxes/executor.ts';
import { createMeetings } from './sandboxes/meetings.ts';
import { Ownership } from './sandboxes/ownership.ts';
import { podProvider } from './sandboxes/pod-provider.ts';
import { createWriter } from './sandboxes/writer.ts';
import { tokenReviewer } from './sandboxes/token-review.ts';
import {
  readRequestHeaderConfig,
  readSecretOf,
  readTenantSecretOf,
  reviewAccessOf,
  reviewTokenOf,
  reviewUserOf,
  waitForTls,
} from './cluster-access.ts';
import { createOutbound } from './outbound.ts';
import { openControlStore } from './store/control-store.ts';
import type { Database } from './store/database.ts';
import { newId } from './store/ids.ts';
import { listen } from './store/listen.ts';
import { isSchemaInRange, migrate, schemaVersion } from './store/migrate.ts';
import { openPostgresStore } from './store/postgres-store.ts';
import { serveHealth } from './telemetry/health.ts';
import { createLogger, type Logger } from './telemetry/log.ts';
import { createMetrics } from './telemetry/metrics.ts';

const stop = new AbortController();
for (const name of ['SIGINT', 'SIGTERM'] as const)
  process.once(name, () => stop.abort(new Error(`stopped by ${name}`)));

/** Certificates that were renewed, and who may speak for others, are known after this. */
const REFRESH_MS = 30_000;
const TIDY_MS = 600_000;
/** Until a Service knows that a pod stops. */
const STOP_MS = 3_000;
const ROLES: Readonly<Record<string, (signal: AbortSignal) => Promise<void>>> = {
  operator,
  turns,
  api,
  migrate: runMigrate,
};
const role = ROLES[process.argv[2] ?? ''];
if (role === undefined) {
  process.stderr.write(`usage: lathe ${Object.keys(ROLES).join('|')}\n`);
  process.exit(2);
}
try {
  await role(stop.signal);
  process.exit(0);
} catch (error) {
  if (stop.signal.aborted) process.exit(0);
  createLogger('error').error('this process ends', { err: error });
  process.exit(1);
}

async function runMigrate(signal: AbortSignal): Promise<void> {
  const config = readMigrateConfig(process.env);
  const log = createLogger(config.LATHE_LOG_LEVEL, { process: 'migrate' });
  await migrate(config.LATHE_DATABASE_URL, { say: (line) => log.info(line) }, signal);
}

async function operator(signal: AbortSignal): Promise<void> {
  const config = readOperatorConfig(process.env);
  const log = createLogger(config.LATHE_LOG_LEVEL, { process: 'operator' });
  const metrics = createMetrics();
  const client = kubeClient();
  const store = openControlStore(config.LATHE_DATABASE_URL);
  await serveHealth(
    config.LATHE_HEALTH_PORT,
    { ready: () => schemaReady(store.database, signal), registry: metrics.registry },
    signal,
  );
  await whenSchemaReady(store.database, log, signal);
  await runElected(
    {
      client,
      namespace: config.LATHE_NAMESPACE,
      name: 'lathe-operator',
      identity: config.POD_NAME,
      onProblem: (message, err) => log.warn(message, { err }),
    },
    async (leading) => {
      log.info('this replica leads');
      await runControllers(
        {
          client,
          store,
          databaseUrl: config.LATHE_DATABASE_URL,
          log,
          metrics,
          settings: {
            namespace: config.LATHE_NAMESPACE,
            turnsService: config.LATHE_TURNS_SERVICE,
            sandboxPort: config.LATHE_SANDBOX_PORT,
            runtimeImage: config.LATHE_RUNTIME_IMAGE,
            sandboxImage: config.LATHE_SANDBOX_IMAGE,
            aggregated: config.LATHE_API_AGGREGATED === 'true',
          },
        },
        leading,
      );
    },
    signal,
  );
  await store.close();
}

async function turns(signal: AbortSignal): Promise<void> {
  const config = readTurnsConfig(process.env);
  const log = createLogger(config.LATHE_LOG_LEVEL, { process: 'turns' });
  const metrics = createMetrics();
  const client = kubeClient();
  const store = openPostgresStore(config.LATHE_DATABASE_URL, 'lathe turns');
  let serving = false;
  await serveHealth(
    config.LATHE_HEALTH_PORT,
    {
      ready: async () =>
        serving ? await schemaReady(store.database, signal) : 'it waits for its schema and certificate',
      registry: metrics.registry,
    },
    signal,
  );
  await whenSchemaReady(store.database, log, signal);
  const tls = await waitForTls(client, config.LATHE_NAMESPACE, 'lathe-turns-tls', log, signal);

  const hub = createHub();
  const meeting = createMeetings();
  const provider = podProvider(store);
  const ownership = new Ownership({
    store,
    replica: newId(),
    address: `${config.POD_IP}:${config.LATHE_SANDBOX_PORT}`,
    log,
  });
  const executor: Executor = createExecutor({ store, ownership, provider, meeting, log, onEvents: hub.changed });
  const writer = createWriter({ store, ownership, onEvents: hub.changed });
  const authenticate = tokenReviewer(reviewTokenOf(client));
  const readSecret = readSecretOf(client, config.LATHE_NAMESPACE);
  const scratch = join(config.LATHE_SCRATCH, 'lathe-seeds');
  // What a killed process left: half a clone, perhaps with a key beside it.
  await rm(scratch, { recursive: true, force: true });
  setInterval(() => metrics.ownedWorkspaces.set(ownership.count), 5_000).unref();
  const loop = createTurnLoop({
    store,
    ownership,
    log,
    concurrency: config.LATHE_TURN_CONCURRENCY,
    seedConcurrency: config.LATHE_SEED_CONCURRENCY,
    seed: {
      store,
      outbound: createOutbound(config.LATHE_SEED_ALLOWED_HOSTS),
      readSecret: readTenantSecretOf(client, `${config.LATHE_NAMESPACE}:lathe-turns`),
      folder: scratch,
      diskBytes: Math.floor((parseQuantity(config.LATHE_SCRATCH_SIZE) ?? 0) / config.LATHE_SEED_CONCURRENCY),
    },
    turn: {
      store,
      executor,
      hub,
      model: (name, spec) => resolveModel(name, spec, provider, readSecret),
      onEnded: (phase) => metrics.turns.inc({ phase }),
    },
  });

  const ready = Promise.withResolvers<void>();
  const beating = ownership.run(ready.resolve, signal);
  await Promise.race([ready.promise, beating]);
  await using sandboxes = await startAttachServer({
    tls,
    address: `0.0.0.0:${config.LATHE_SANDBOX_PORT}`,
    store,
    ownership,
    meeting,
    executor: () => executor,
    authenticate,
    log,
  });
  await using programs = await startTurnsService({
    tls,
    address: `0.0.0.0:${config.LATHE_PROGRAMS_PORT}`,
    store,
    ownership,
    executor,
    writer,
    hub,
  });
  log.info('listening', { address: `${sandboxes.port}, ${programs.port}` });
  serving = true;
  const hints = listen(config.LATHE_DATABASE_URL, ['lathe_turn'], loop.wake, signal);
  await loop.run(signal);
  await Promise.all([beating, hints]);
  await store.close();
}

async function api(signal: AbortSignal): Promise<void> {
  const config = readApiConfig(process.env);
  const { LATHE_NAMESPACE: namespace } = config;
  const log = createLogger(config.LATHE_LOG_LEVEL, { process: 'api' });
  const metrics = createMetrics();
  const client = kubeClient();
  const store = openPostgresStore(config.LATHE_DATABASE_URL, 'lathe api');
  let serving = false;
  // Discovery needs no database; whoever asks for files while it is away is told so.
  const ready = () => (serving ? undefined : 'it waits for its certificate, or stops');
  await serveHealth(config.LATHE_HEALTH_PORT, { ready, registry: metrics.registry }, signal);
  const held = {
    tls: await waitForTls(client, namespace, 'lathe-api-tls', log, signal),
    turns: await waitForTls(client, namespace, 'lathe-client-tls', log, signal),
    requestHeader: undefined as RequestHeaderConfig | undefined,
  };
  // Each by itself: a cluster that aggregates nothing has no requestheader configuration, and certificates end all the same.
  const refresh = async (): Promise<void> => {
    const within = AbortSignal.any([signal, AbortSignal.timeout(REFRESH_MS)]);
    const tls = (name: string) => waitForTls(client, namespace, name, log, within);
    const done = await Promise.allSettled([
      readRequestHeaderConfig(client, within).then((now) => void (held.requestHeader = now)),
      tls('lathe-api-tls').then((now) => void (held.tls = now)),
      tls('lathe-client-tls').then((now) => void (held.turns = now)),
    ]);
    for (const one of done)
      if (one.status === 'rejected' && !signal.aborted)
        log.warn('a certificate, or who may speak for others, was not read again', { err: one.reason });
  };
  await refresh();
  const owner = connectOwner({
    tls: () => held.turns,
    service: config.LATHE_TURNS_ADDRESS,
    tlsName: `${config.LATHE_TURNS_SERVICE}.${namespace}.svc`,
  });
  const server = await startApi({
    deps: { store, owner },
    tls: () => held.tls,
    requestHeader: () => held.requestHeader,
    authenticateBearer: bearerAuthenticator(reviewUserOf(client)),
    authorizer: createAuthorizer(reviewAccessOf(client)),
    aggregatedPort: config.LATHE_AGGREGATED_PORT,
    directPort: config.LATHE_DIRECT_PORT,
    log,
    onRequest: (subresource, verb, code, seconds) =>
      metrics.apiRequests.observe({ subresource, verb, code: String(code) }, seconds),
  });
  serving = true;
  log.info('listening', { address: `${server.aggregatedPort}, ${server.directPort}` });
  const tidying = setInterval(
    () => void store.dropExpired().catch((err: unknown) => log.warn('what expired was not dropped', { err })),
    TIDY_MS,
  );
  while (!signal.aborted) {
    await delay(REFRESH_MS, undefined, { signal }).catch(() => undefined);
    if (!signal.aborted) await refresh();
    try {
      server.reload();
    } catch (err) {
      log.warn('a certificate is not usable; the one before stays in use', { err });
    }
  }
  clearInterval(tidying);
  // Requests still come until the Service has heard that this pod stops; those that run may end.
  serving = false;
  await delay(STOP_MS);
  await server[Symbol.asyncDispose]();
  owner.close();
  await store.close();
}

function kubeClient() {
  const kubeConfig = new KubeConfig();
  kubeConfig.loadFromDefault();
  return createKubeClient({ kubeConfig, fieldManager: 'lathe' });
}

/** Undefined: this program can work on the schema that is there. */
async function schemaReady(database: Database, signal: AbortSignal): Promise<string | undefined> {
  const version = await schemaVersion(database, signal).catch(() => undefined);
  return isSchemaInRange(version)
    ? undefined
    : `the schema is at version ${version ?? 'unknown'}, which this program can't work on`;
}

async function whenSchemaReady(database: Database, log: Logger, signal: AbortSignal): Promise<void> {
  for (;;) {
    const waiting = await schemaReady(database, signal);
    if (waiting === undefined) return;
    log.info(waiting);
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    signal.throwIfAborted();
  }
}
