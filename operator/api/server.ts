/** Two HTTPS listeners, one handler: behind the cluster's API server, and direct. */
import { createServer, type Server, type ServerOptions } from 'node:https';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { TLSSocket } from 'node:tls';
import { GROUP } from '../../proto/live/types.ts';
import { PermanentError, TransientError } from '../errors.ts';
import type { Tls } from '../sandboxes/attach-server.ts';
import type { Logger } from '../telemetry/log.ts';
import { frontProxyIdentity, type Identity, type RequestHeaderConfig } from './authentication.ts';
import type { Authorizer } from './authorization.ts';
import type { AuthenticateBearer } from './bearer.ts';
import { createBudget, type Budget } from './budget.ts';
import type { Call, Deps } from './call.ts';
import { limitPerSource } from './connections.ts';
import { discover } from './discovery.ts';
import { statusOf } from './errors.ts';
import { commonNameUnder } from './peer.ts';
import { routeOf } from './routes.ts';

export type ApiOptions = Readonly<{
  deps: Deps;
  /** As it is now; `reload` after it changed. */
  tls: () => Tls;
  /** Undefined: nothing is believed of who comes through the API server. */
  requestHeader: () => RequestHeaderConfig | undefined;
  authenticateBearer: AuthenticateBearer;
  authorizer: Authorizer;
  aggregatedPort: number;
  directPort: number;
  log: Logger;
  /** Of each request that ended. */
  onRequest?: (subresource: string, verb: string, code: number, seconds: number) => void;
}>;
export type ApiServer = AsyncDisposable &
  Readonly<{
    aggregatedPort: number;
    directPort: number;
    /** New connections use what `tls` and `requestHeader` say now. @throws Error when they can't; the old ones stay in use */
    reload(): void;
  }>;

/** CONTRACTS 8, before anybody is known. */
const HANDSHAKE_MS = 5_000;
const HEADER_BYTES = 8 * 1024;
const HEADERS_MS = 10_000;
/** The API server ends every request at 60 s; a client that is slower sends less at once. */
const REQUEST_MS = 120_000;
const CONNECTIONS = 2_000;
/** Of bodies and answers that are whole in memory, of all requests; each is copied once or twice on its way. */
const HELD_BYTES = 64 * 1024 * 1024;
/** Of these, what one tenant has: slow senders of one namespace hold up no other's. */
const HELD_OF_ONE_BYTES = 24 * 1024 * 1024;
/** A body waits no longer than this for its place. */
const HELD_MS = 15_000;
/** Of one address, without a certificate. */
const CONNECTIONS_OF_ONE = 200;

export async function startApi(options: ApiOptions): Promise<ApiServer> {
  const { log } = options;
  const budget = createBudget({ bytes: HELD_BYTES, waitMs: HELD_MS });
  const shares = new Map<string, Budget>();
  const shareOf = (tenant: string): Budget => {
    const share = shares.get(tenant) ?? createBudget({ bytes: HELD_OF_ONE_BYTES, waitMs: HELD_MS });
    shares.set(tenant, share);
    return share;
  };
  const aggregated = listener({ requestCert: true, rejectUnauthorized: false }, async (request) => {
    const config = options.requestHeader();
    if (config === undefined)
      throw new TransientError('ServiceUnavailable', 'how the API server signs its requests is not known yet');
    const name = commonNameUnder(request.socket as TLSSocket, config.ca);
    return frontProxyIdentity(request.headersDistinct, name, config);
  });
  const direct = listener({}, (request) =>
    options.authenticateBearer(request.headers.authorization, request.socket.remoteAddress ?? ''),
  );
  for (const server of [aggregated, direct]) limitPerSource(server, CONNECTIONS_OF_ONE);
  let inUse = '';
  const reload = () => {
    const { certificate: cert, key } = options.tls();
    const ca = options.requestHeader()?.ca;
    const now = [cert, key, ca].join();
    // A new context makes every session that could be resumed worth nothing.
    if (now === inUse) return;
    aggregated.setSecureContext({ cert, key, ...(ca === undefined ? {} : { ca }) });
    direct.setSecureContext({ cert, key });
    inUse = now;
  };
  reload();
  return {
    aggregatedPort: await listen(aggregated, options.aggregatedPort),
    directPort: await listen(direct, options.directPort),
    reload,
    [Symbol.asyncDispose]: async () => {
      for (const server of [aggregated, direct]) {
        server.close();
        server.closeIdleConnections();
      }
      // What runs may end; what does not is cut, and resumed by its caller.
      const cut = setTimeout(() => [aggregated, direct].forEach((s) => s.closeAllConnections()), 10_000).unref();
      await Promise.all([aggregated, direct].map((s) => new Promise((resolve) => s.once('close', resolve))));
      clearTimeout(cut);
    },
  };

  function listener(
    tls: ServerOptions,
    authenticate: (request: IncomingMessage) => Promise<Identity | undefined>,
  ): Server {
    const server = createServer(
      {
        ...tls,
        minVersion: 'TLSv1.2',
        handshakeTimeout: HANDSHAKE_MS,
        maxHeaderSize: HEADER_BYTES,
        headersTimeout: HEADERS_MS,
        requestTimeout: REQUEST_MS,
        keepAliveTimeout: 75_000,
        noDelay: true,
      },
      (request, response) => void serve(request, response, authenticate),
    );
    server.maxConnections = CONNECTIONS;
    server.on('tlsClientError', (err) => log.debug('a handshake failed', { err }));
    server.on('clientError', (_, socket) => socket.destroy());
    return server;
  }

  async function serve(
    request: IncomingMessage,
    response: ServerResponse,
    authenticate: (request: IncomingMessage) => Promise<Identity | undefined>,
  ): Promise<void> {
    const started = performance.now();
    const gone = new AbortController();
    response.once('close', () => gone.abort(new Error('the caller is gone')));
    const method = request.method ?? 'GET';
    let what = { subresource: 'none', verb: method.toLowerCase() };
    let name: string | undefined;
    const held: (() => void)[] = [];
    try {
      const url = urlOf(request);
      // Without a database and without knowing who asks: a probe, or the API server itself.
      const constant =
        method === 'GET' || method === 'HEAD' ? discover(url.pathname, request.headers.accept) : undefined;
      if (constant !== undefined) {
        const body = Buffer.from(constant.body);
        response.writeHead(200, { 'content-type': constant.type, 'content-length': body.length });
        response.end(method === 'HEAD' ? undefined : body);
        return;
      }
      const identity = await authenticate(request);
      if (identity === undefined)
        throw new PermanentError(
          'Unauthorized',
          'nobody is known by this request; come through the API server, or with a token of audience lathe.dev',
        );
      const route = routeOf(method, url.pathname);
      what = route;
      name = route.name;
      const { namespace, subresource, verb } = route;
      const { authorizer, deps } = options;
      await authorizer.demand(identity, { group: GROUP, resource: 'workspaces', subresource, verb, namespace, name });
      const workspace = await deps.store.findWorkspace(namespace, name, gone.signal);
      if (workspace === undefined)
        throw new PermanentError('NotFound', `workspaces.lathe.dev "${name}" not found in namespace "${namespace}"`);
      const call: Call = {
        ...deps,
        request,
        response,
        query: url.searchParams,
        identity,
        workspace,
        signal: gone.signal,
        hold: async (bytes) => {
          for (const from of [shareOf(workspace.tenant), budget]) held.push(await from.take(bytes, gone.signal));
        },
        mayApprove: () =>
          authorizer.allows(identity, {
            group: 'lathe.dev',
            resource: 'workspaces',
            verb: 'approve',
            namespace,
            name: route.name,
          }),
      };
      await route.handler(call);
    } catch (error) {
      if (!gone.signal.aborted) fail(request, response, error, name);
    } finally {
      for (const release of held) release();
      options.onRequest?.(what.subresource, what.verb, response.statusCode, (performance.now() - started) / 1_000);
    }
  }

  function fail(request: IncomingMessage, response: ServerResponse, error: unknown, name: string | undefined): void {
    const body = statusOf(error, name);
    if (body.reason === 'Unknown') log.error('a request failed', { err: error, name: name ?? '' });
    if (response.headersSent) {
      // Half an answer must not look like a whole one.
      response.destroy();
      return;
    }
    const text = `${JSON.stringify(body)}\n`;
    const retryAfter = body.details?.retryAfterSeconds;
    if (retryAfter !== undefined) response.setHeader('retry-after', retryAfter);
    if (body.code === 401) response.setHeader('www-authenticate', 'Bearer realm="lathe.dev"');
    // What is left of a body that was refused is not read.
    if (!request.complete) response.setHeader('connection', 'close');
    response.setHeader('content-length', Buffer.byteLength(text));
    response.writeHead(body.code, { 'content-type': 'application/json' }).end(text);
  }
}

/** @throws PermanentError BadRequest */
function urlOf({ url = '' }: IncomingMessage): URL {
  const parsed = url.startsWith('/') ? URL.parse(`http://api${url}`) : null;
  if (parsed === null) throw new PermanentError('BadRequest', 'the URL of this request is not one that can be read');
  return parsed;
}

async function listen(server: Server, port: number): Promise<number> {
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(port, resolve));
  const address = server.address();
  return typeof address === 'object' && address !== null ? address.port : port;
}
