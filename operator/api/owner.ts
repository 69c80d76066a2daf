/** Writes go to the replica that owns the workspace: the Service finds some replica, which names the owner. */
import { setTimeout as delay } from 'node:timers/promises';
import { Metadata, status, credentials, type ServiceError } from '@grpc/grpc-js';
import {
  TurnsServiceClient,
  type Imported,
  type ImportProgress,
  type ImportRequest,
  type ImportResponse,
  type WorkspaceRef,
  type WriteChange,
  type WriteHead,
  type WriteRequest,
  type WriteResponse,
  type Written,
} from '../../proto/gen/lathe/turns/v1/turns.ts';
import { PermanentError, TransientError } from '../errors.ts';
import type { Tls } from '../sandboxes/attach-server.ts';

export type Owner = Readonly<{
  /** @throws PermanentError with the owner's reason; TransientError when it may be asked again (with an Idempotency-Key) */
  write(head: WriteHead, changes: readonly WriteChange[], signal: AbortSignal): Promise<Written>;
  /**
   * What came of an import, or how far it is after `patienceMs`; it goes on meanwhile.
   * @throws as write
   */
  import(
    request: ImportRequest,
    patienceMs: number,
    signal: AbortSignal,
  ): Promise<Readonly<{ imported: Imported } | { progress: ImportProgress }>>;
  close(): void;
}>;
type Answered<T> = Readonly<{ value: T } | { redirect: string }>;

/** CONTRACTS 3. */
const HOPS = 3;
const CONNECT_MS = 3_000;
/** Longer than a takeover, shorter than what the API server waits. */
const PATIENCE_MS = 20_000;
const MAX_PAUSE_MS = 1_000;
const DEADLINE_MS = 50_000;
/** Below the 512 KiB that the other side takes. */
const PAGE_BYTES = 192 * 1024;
/** Channels to replicas that are kept. */
const CHANNELS = 64;

/** @param service host:port of the Service; @param tlsName what every replica's certificate is for */
export function connectOwner(options: Readonly<{ tls: () => Tls; service: string; tlsName: string }>): Owner {
  const clients = new Map<string, TurnsServiceClient>();
  /** Where each workspace's owner was seen last. */
  const known = new Map<string, string>();
  let madeWith: Buffer | undefined;
  const clientOf = (address: string): TurnsServiceClient => {
    const { ca, certificate, key } = options.tls();
    // A channel keeps the certificate that it was made with.
    if (madeWith?.equals(certificate) === false) {
      for (const client of clients.values()) client.close();
      clients.clear();
    }
    madeWith = certificate;
    const found = clients.get(address);
    if (found !== undefined) return found;
    if (clients.size >= CHANNELS) {
      const [oldest] = clients;
      if (oldest !== undefined) {
        oldest[1].close();
        clients.delete(oldest[0]);
      }
    }
    const made = new TurnsServiceClient(address, credentials.createSsl(ca, key, certificate), {
      'grpc.ssl_target_name_override': options.tlsName,
      'grpc.keepalive_time_ms': 5_000,
      'grpc.keepalive_timeout_ms': 5_000,
    });
    clients.set(address, made);
    return made;
  };

  /** @param safe it may be asked again when nobody knows whether it was done */
  const reach = async <T>(
    workspace: WorkspaceRef | undefined,
    safe: boolean,
    signal: AbortSignal,
    ask: (client: TurnsServiceClient) => Promise<Answered<T>>,
  ): Promise<T> => {
    const name = `${workspace?.namespace ?? ''}/${workspace?.name ?? ''}`;
    const until = performance.now() + PATIENCE_MS;
    for (let hops = 0, pauseMs = 50; ;) {
      const address = known.get(name) ?? options.service;
      const client = clientOf(address);
      try {
        await connected(client, address, signal);
        const answer = await ask(client);
        if ('value' in answer) {
          if (known.size > 10_000) known.clear();
          known.set(name, address);
          return answer.value;
        }
        hops += 1;
        if (hops > HOPS)
          throw new TransientError(
            'ServiceUnavailable',
            `the owner of workspace ${name} was not found in ${HOPS} hops`,
          );
        // Replicas say where sandboxes reach them; programs do at the port of the Service.
        known.set(name, options.service.replace(/^.*(?=:)/, answer.redirect.replace(/:\d+$/, '')));
      } catch (error) {
        known.delete(name);
        if (!mayAgain(error, safe) || signal.aborted || performance.now() + pauseMs > until)
          throw isServiceError(error) ? errorOf(error) : error;
        // Its owner may have died: another one has it within 12 s (CONTRACTS 3), and until then is sent to where it was.
        await delay(pauseMs, undefined, { signal }).catch(() => undefined);
        pauseMs = Math.min(pauseMs * 2, MAX_PAUSE_MS);
        hops = 0;
      }
    }
  };

  return {
    write: async (head, changes, signal) =>
      // Without a key it could be done twice.
      await reach<Written>(head.workspace, head.idempotencyKey !== '', signal, async (client) => {
        const { message } = await send(client, head, changes, signal);
        if (message?.$case === 'written') return { value: message.value };
        if (message?.$case === 'redirect') return { redirect: message.value.address };
        throw new Error('the turn controller answered nothing');
      }),
    import: async (request, patienceMs, signal) =>
      await reach(request.workspace, true, signal, (client) => waitForImport(client, request, patienceMs, signal)),
    close: () => {
      for (const client of clients.values()) client.close();
    },
  };
}

/** Nothing was sent. */
class NotConnected extends TransientError {}

/** Whether asking again can do nothing twice. */
function mayAgain(error: unknown, safe: boolean): boolean {
  if (error instanceof NotConnected) return true;
  if (!isServiceError(error)) return false;
  // ABORTED says that nothing was done.
  return error.code === status.ABORTED || (error.code === status.UNAVAILABLE && safe);
}

/** @throws NotConnected after 3 s */
function connected(client: TurnsServiceClient, address: string, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const gone = () => reject(signal.reason as Error);
    if (signal.aborted) return gone();
    signal.addEventListener('abort', gone, { once: true });
    client.waitForReady(Date.now() + CONNECT_MS, (error) => {
      signal.removeEventListener('abort', gone);
      if (error === undefined) resolve();
      else
        reject(
          new NotConnected(
            'ServiceUnavailable',
            `no turn controller answered at ${address} within ${CONNECT_MS / 1_000} s; nothing was written, ask again`,
          ),
        );
    });
  });
}

function send(
  client: TurnsServiceClient,
  head: WriteHead,
  changes: readonly WriteChange[],
  signal: AbortSignal,
): Promise<WriteResponse> {
  return new Promise((resolve, reject) => {
    const call = client.write(new Metadata(), { deadline: Date.now() + DEADLINE_MS }, (error, response) => {
      signal.removeEventListener('abort', cancel);
      if (error === null) resolve(response);
      else reject(error);
    });
    const cancel = () => call.cancel();
    signal.addEventListener('abort', cancel, { once: true });
    const write = (request: WriteRequest) => call.write(request);
    write({ message: { $case: 'head', value: head } });
    for (const page of pagesOf(changes)) write({ message: { $case: 'changes', value: { changes: page } } });
    call.end();
  });
}

async function waitForImport(
  client: TurnsServiceClient,
  request: ImportRequest,
  patienceMs: number,
  signal: AbortSignal,
): Promise<Answered<{ imported: Imported } | { progress: ImportProgress }>> {
  const call = client.import(request, new Metadata(), { deadline: Date.now() + patienceMs + DEADLINE_MS });
  const cancel = () => call.cancel();
  signal.addEventListener('abort', cancel, { once: true });
  const enough = Date.now() + patienceMs;
  try {
    for await (const { message } of call as AsyncIterable<ImportResponse>) {
      if (message?.$case === 'imported') return { value: { imported: message.value } };
      if (message?.$case === 'redirect') return { redirect: message.value.address };
      if (message?.$case === 'progress' && Date.now() > enough) return { value: { progress: message.value } };
    }
    throw new Error('the turn controller answered nothing');
  } finally {
    signal.removeEventListener('abort', cancel);
    // It goes on without us.
    call.on('error', () => undefined);
    call.cancel();
  }
}

function* pagesOf(changes: readonly WriteChange[]): Iterable<WriteChange[]> {
  let page: WriteChange[] = [];
  let bytes = 0;
  for (const change of changes) {
    const size = change.path.length * 3 + change.target.length * 3 + (change.inline?.length ?? 0) + 128;
    if (bytes + size > PAGE_BYTES && page.length > 0) {
      yield page;
      page = [];
      bytes = 0;
    }
    page.push(change);
    bytes += size;
  }
  if (page.length > 0) yield page;
}

function isServiceError(error: unknown): error is ServiceError {
  return error instanceof Error && 'code' in error && 'metadata' in error;
}

function errorOf(error: ServiceError): Error {
  const reason = String(error.metadata.get('lathe-reason')[0] ?? '');
  const { code, details } = error;
  if (code === status.UNAVAILABLE || code === status.ABORTED || code === status.DEADLINE_EXCEEDED)
    return new TransientError(
      reason === '' || reason === 'FenceLost' ? 'ServiceUnavailable' : reason,
      `the turn controller did not answer (${details}); ask again, with the same Idempotency-Key if it was a write`,
      { cause: error },
    );
  return new PermanentError(reason === '' ? 'Unknown' : reason, details, { cause: error });
}
