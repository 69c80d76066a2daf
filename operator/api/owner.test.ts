import { createServer, type AddressInfo, type Server as TcpServer, type Socket } from 'node:net';
import { Metadata, Server, ServerCredentials, status } from '@grpc/grpc-js';
import { afterEach, beforeAll, expect, test } from 'vitest';
import {
  TurnsServiceService,
  type TurnsServiceServer,
  type WriteHead,
  type WriteResponse,
} from '../../proto/gen/lathe/turns/v1/turns.ts';
import { issueLeaf, newAuthority } from '../controllers/certificate-authority.ts';
import type { Tls } from '../sandboxes/attach-server.ts';
import { connectOwner } from './owner.ts';
import { change } from './writes.ts';

const NAME = 'lathe-turns.lathe.svc';
const { signal } = new AbortController();
const closing: (() => void)[] = [];
let tls: Tls;

beforeAll(async () => {
  const authority = await newAuthority(new Date());
  const leaf = await issueLeaf(authority, { commonName: NAME, names: [NAME] }, new Date());
  const [ca, certificate, key] = [authority.certificate, leaf.certificate, leaf.key].map((pem) => Buffer.from(pem));
  tls = { ca: ca ?? Buffer.alloc(0), certificate: certificate ?? Buffer.alloc(0), key: key ?? Buffer.alloc(0) };
});
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

/** A replica at 127.0.0.`host`; what it answers, by the number of the request from 1 on. */
async function replica(host: number, port: number, answer: (nth: number) => WriteResponse | number): Promise<number> {
  const server = new Server();
  let nth = 0;
  const service: Partial<TurnsServiceServer> = {
    write: (call, reply) => {
      call.on('end', () => {
        nth += 1;
        const made = answer(nth);
        if (typeof made === 'number') reply({ code: made, details: 'away', metadata: new Metadata() });
        else reply(null, made);
      });
      call.resume();
    },
  };
  server.addService(TurnsServiceService, service as TurnsServiceServer);
  const credentials = ServerCredentials.createSsl(
    tls.ca,
    [{ cert_chain: tls.certificate, private_key: tls.key }],
    true,
  );
  closing.push(() => server.forceShutdown());
  return await new Promise((resolve, reject) => {
    server.bindAsync(`127.0.0.${host}:${port}`, credentials, (error, bound) =>
      error ? reject(error) : resolve(bound),
    );
  });
}

/** Takes connections and says nothing, as a node that hangs does. */
async function silent(host: number, port: number): Promise<void> {
  const sockets = new Set<Socket>();
  const server: TcpServer = createServer((socket) => void sockets.add(socket.on('error', () => undefined)));
  closing.push(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  await new Promise<void>((resolve) => server.listen(port, `127.0.0.${host}`, resolve));
  expect((server.address() as AddressInfo).port).toBe(port);
}

const written = (version: bigint): WriteResponse => ({
  message: {
    $case: 'written',
    value: { version, committed: true, created: 1, changed: 0, deleted: 0, paths: ['/a'], refused: [] },
  },
});
const redirect = (host: number): WriteResponse => ({
  message: { $case: 'redirect', value: { address: `127.0.0.${host}:8443` } },
});

function write(port: number, idempotencyKey = '') {
  const owner = connectOwner({ tls: () => tls, service: `127.0.0.1:${port}`, tlsName: NAME });
  closing.push(() => owner.close());
  const head: WriteHead = {
    workspace: { namespace: 'team', name: 'w' },
    actor: 'ada',
    origin: 'api',
    idempotencyKey,
    requestSha256: Buffer.alloc(32),
    dryRun: false,
    allOrNothing: false,
    mayDelete: false,
  };
  return owner.write(head, [change('/a', 'directory')], signal);
}

test('the Service names the owner, who is asked at the port for programs', async () => {
  const port = await replica(1, 0, () => redirect(2));
  await replica(2, port, () => written(7n));
  expect(await write(port)).toMatchObject({ version: 7n });
});

test('an owner that does not answer is left after 3 s, and the Service asked who has it now; no key is needed', async () => {
  const port = await replica(1, 0, (nth) => (nth === 1 ? redirect(2) : written(8n)));
  await silent(2, port);
  const began = performance.now();
  expect(await write(port)).toMatchObject({ version: 8n });
  expect(performance.now() - began).toBeLessThan(6_000);
}, 15_000);

test('an owner that died is asked for until another one has the workspace', async () => {
  const port = await replica(1, 0, (nth) => (nth < 4 ? redirect(2) : written(9n)));
  // Nobody listens at 127.0.0.2.
  expect(await write(port)).toMatchObject({ version: 9n });
}, 40_000);

test.for<[situation: string, code: number, key: string, asked: number]>([
  ['ABORTED: nothing was done, it is asked again', status.ABORTED, '', 2],
  ['UNAVAILABLE with a key: it is asked again', status.UNAVAILABLE, 'key', 2],
  ['UNAVAILABLE without: it might be done twice', status.UNAVAILABLE, '', 1],
  ['what the owner refuses is not asked again', status.FAILED_PRECONDITION, 'key', 1],
])('%s', async ([, code, key, asked]) => {
  let seen = 0;
  const port = await replica(1, 0, (nth) => {
    seen = nth;
    return nth === 1 ? code : written(1n);
  });
  const outcome = await write(port, key).then(
    () => 'written',
    () => 'failed',
  );
  expect([seen, outcome]).toEqual([asked, asked === 2 ? 'written' : 'failed']);
});

test('replicas that send in circles end it', async () => {
  const port = await replica(1, 0, () => redirect(2));
  await replica(2, port, () => redirect(1));
  await expect(write(port)).rejects.toThrow(/3 hops/);
});
