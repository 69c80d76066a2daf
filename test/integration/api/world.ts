/** The live API on real Postgres and a real turn controller; what the cluster would answer of people is said here. */
import { request as httpsRequest, type Agent } from 'node:https';
import type { IncomingHttpHeaders } from 'node:http';
import { afterAll, beforeAll } from 'vitest';
import type { Identity, RequestHeaderConfig } from '../../../operator/api/authentication.ts';
import { createAuthorizer, type Attributes } from '../../../operator/api/authorization.ts';
import { connectOwner } from '../../../operator/api/owner.ts';
import { startApi, type ApiServer } from '../../../operator/api/server.ts';
import { issueLeaf, newAuthority, type Pair } from '../../../operator/controllers/certificate-authority.ts';
import { createHub } from '../../../operator/harness/hub.ts';
import { startTurnsService } from '../../../operator/harness/turns-service.ts';
import { createLogger } from '../../../operator/telemetry/log.ts';
import { TLS_NAME, useSandboxes, type SandboxWorld } from '../sandboxes/world.ts';

export type Answer = Readonly<{ code: number; headers: IncomingHttpHeaders; body: Buffer; json: () => Json }>;
// What a test looks into.
export type Json = Record<string, unknown> & { items?: Record<string, unknown>[]; metadata?: { continue?: string } };
export type Ask = Readonly<{
  query?: Record<string, string>;
  headers?: Record<string, string>;
  body?: Buffer | string;
  user?: string;
}>;
export type ApiWorld = SandboxWorld & {
  api: ApiServer;
  /** Direct, with a token; `path` is what follows the workspace's name, or an absolute one. */
  ask(method: string, workspace: { namespace: string; name: string }, path: string, ask?: Ask): Promise<Answer>;
  /** Through the front proxy's way in. */
  askAggregated(path: string, headers: Record<string, string>, client?: Pair, agent?: Agent): Promise<Answer>;
  frontProxy: { ca: Pair; client: Pair };
  requestHeader: RequestHeaderConfig;
  /** Whether somebody may; everything, unless a test says otherwise. */
  allows: (identity: Identity, attributes: Attributes) => boolean | Promise<boolean>;
  reviews: number;
};

export function useApi(): ApiWorld {
  const world = useSandboxes() as ApiWorld;
  const closing: (() => PromiseLike<void> | void)[] = [];
  let ca: Buffer;

  beforeAll(async () => {
    const log = createLogger('error');
    const { replica } = world;
    ca = replica.tls.ca;
    const programs = await startTurnsService({
      tls: replica.tls,
      address: '127.0.0.1:0',
      store: world.store,
      ownership: replica.ownership,
      executor: replica.executor,
      writer: replica.writer,
      hub: createHub(),
    });
    closing.push(() => programs[Symbol.asyncDispose]());
    const proxyCa = await newAuthority(new Date());
    const leaf = (commonName: string) => issueLeaf(proxyCa, { commonName, names: [commonName] }, new Date());
    world.frontProxy = { ca: proxyCa, client: await leaf('front-proxy-client') };
    world.requestHeader = {
      ca: proxyCa.certificate,
      allowedNames: ['front-proxy-client'],
      userHeaders: ['X-Remote-User'],
      groupHeaders: ['X-Remote-Group'],
      uidHeaders: [],
      extraPrefixes: ['X-Remote-Extra-'],
    };
    world.allows = () => true;
    world.reviews = 0;
    const owner = connectOwner({
      tls: () => replica.tls,
      service: `127.0.0.1:${programs.port}`,
      tlsName: TLS_NAME,
    });
    closing.push(() => owner.close());
    world.api = await startApi({
      deps: { store: world.store, owner },
      tls: () => replica.tls,
      requestHeader: () => world.requestHeader,
      authenticateBearer: async (authorization) => {
        const user = /^Bearer (.+)$/.exec(authorization ?? '')?.[1];
        return user === undefined ? undefined : { user, groups: [], extra: {} };
      },
      authorizer: createAuthorizer(async (identity, attributes) => {
        world.reviews += 1;
        return { allowed: await world.allows(identity, attributes), reason: '' };
      }),
      aggregatedPort: 0,
      directPort: 0,
      log,
    });
    closing.unshift(() => world.api[Symbol.asyncDispose]());
  });
  afterAll(async () => {
    for (const close of closing) await close();
  });

  world.ask = (method, { namespace, name }, path, { query = {}, headers = {}, body, user = 'ada' } = {}) => {
    const prefix = path.startsWith('/')
      ? path
      : `/apis/live.lathe.dev/v1alpha1/namespaces/${namespace}/workspaces/${name}/${path}`;
    return send(
      method,
      world.api.directPort,
      `${prefix}?${new URLSearchParams(query).toString()}`,
      { authorization: `Bearer ${user}`, ...headers },
      body,
    );
  };
  world.askAggregated = (path, headers, client, agent) =>
    send('GET', world.api.aggregatedPort, path, headers, undefined, client, agent);
  return world;

  function send(
    method: string,
    port: number,
    path: string,
    headers: Record<string, string>,
    body?: Buffer | string,
    client?: Pair,
    agent?: Agent,
  ): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const request = httpsRequest(
        {
          ...{ host: '127.0.0.1', port, path, method, headers, ca, servername: TLS_NAME, agent: agent ?? false },
          ...(client === undefined ? {} : { cert: client.certificate, key: client.key }),
        },
        (response) => {
          const pieces: Buffer[] = [];
          response.on('data', (piece: Buffer) => pieces.push(piece));
          response.on('error', reject);
          response.on('end', () => {
            const all = Buffer.concat(pieces);
            resolve({
              code: response.statusCode ?? 0,
              headers: response.headers,
              body: all,
              json: () => JSON.parse(all.toString('utf8')) as Json,
            });
          });
        },
      );
      request.on('error', reject);
      request.end(body);
    });
  }
}
