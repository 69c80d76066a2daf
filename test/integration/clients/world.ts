/** SDK and CLI against the live API as it is, over a proxy that can cut. */
import { createServer, connect, type Server, type Socket } from 'node:net';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { afterAll, beforeAll } from 'vitest';
import { run } from '../../../cli/run.ts';
import { createLathe, type Lathe, type Workspace } from '../../../sdk/index.ts';
import { useApi, type ApiWorld } from '../api/world.ts';
import { TLS_NAME } from '../sandboxes/world.ts';

export type ClientsWorld = ApiWorld & {
  lathe: Lathe;
  folder: string;
  /** A new workspace, as the SDK has it. */
  open(options?: Parameters<ApiWorld['workspace']>[0]): Promise<Workspace>;
  /** Cuts every connection after so many more bytes, once. */
  cutAfter(bytes: number): void;
  cli(...words: string[]): Promise<{ code: number; stdout: string; stderr: string }>;
};

export function useClients(): ClientsWorld {
  const world = useApi() as ClientsWorld;
  let proxy: Server;
  let left = Number.POSITIVE_INFINITY;
  const sockets = new Set<Socket>();
  beforeAll(async () => {
    world.folder = await mkdtemp(join(tmpdir(), 'lathe-clients-'));
    proxy = createServer((client) => {
      const server = connect(world.api.directPort, '127.0.0.1');
      for (const socket of [client, server]) {
        sockets.add(socket);
        socket
          .on('error', () => undefined)
          .on('close', () => {
            sockets.delete(socket);
            client.destroy();
            server.destroy();
          });
        socket.on('data', (data) => {
          left -= data.length;
          if (left < 0) {
            left = Number.POSITIVE_INFINITY;
            for (const each of sockets) each.destroy();
          }
        });
      }
      client.pipe(server);
      server.pipe(client);
    });
    await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve));
    const address = proxy.address();
    const port = typeof address === 'object' && address !== null ? address.port : 0;
    world.lathe = connectLathe(port);
    world.cli = async (...words) => {
      const [stdout, stderr] = [collector(), collector()];
      const streams = { stdout: stdout.stream, stderr: stderr.stream, stdin: process.stdin };
      const code = await run(words, streams, AbortSignal.timeout(60_000), () => connectLathe(port));
      return { code, stdout: stdout.text(), stderr: stderr.text() };
    };
  });
  world.open = async (options) => {
    const { name, namespace } = await world.workspace(options);
    return await world.lathe.workspace({ name, namespace });
  };
  world.cutAfter = (bytes) => (left = bytes);
  afterAll(async () => {
    await world.lathe?.[Symbol.asyncDispose]();
    for (const socket of sockets) socket.destroy();
    proxy?.close();
    if (world.folder !== undefined) await rm(world.folder, { recursive: true, force: true });
  });
  return world;

  function connectLathe(port: number): Lathe {
    return createLathe({
      url: `https://127.0.0.1:${port}`,
      token: 'ada',
      ca: world.replica.tls.ca,
      serverName: TLS_NAME,
      namespace: 'team',
    });
  }
}

function collector(): { stream: Writable; text: () => string } {
  const pieces: Buffer[] = [];
  const stream = new Writable({
    write: (piece: Buffer, _, done) => {
      pieces.push(Buffer.from(piece));
      done();
    },
  });
  return { stream, text: () => Buffer.concat(pieces).toString('utf8') };
}
