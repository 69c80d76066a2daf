/** A turn controller's sandbox side on real Postgres, with local sandboxes: real broker and guest processes. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll } from 'vitest';
import { issueLeaf, newAuthority, type Pair } from '../../../operator/controllers/certificate-authority.ts';
import { startAttachServer, type Authenticate } from '../../../operator/sandboxes/attach-server.ts';
import { createExecutor, type Executor, type OutputChunk } from '../../../operator/sandboxes/executor.ts';
import { localProvider, type LocalProvider } from '../../../operator/sandboxes/local-provider.ts';
import { createMeetings } from '../../../operator/sandboxes/meetings.ts';
import { createWriter, type Writer } from '../../../operator/sandboxes/writer.ts';
import { Ownership, type OwnedWorkspace } from '../../../operator/sandboxes/ownership.ts';
import type { Meeting } from '../../../operator/sandboxes/meeting.ts';
import { newId } from '../../../operator/store/ids.ts';
import type { WorkspaceRow } from '../../../operator/store/rows.ts';
import type { WorkspaceStore } from '../../../operator/store/workspace-store.ts';
import { createLogger } from '../../../operator/telemetry/log.ts';
import { useStore, type Fixture } from '../store/fixture.ts';

export type Replica = {
  ownership: Ownership;
  executor: Executor;
  writer: Writer;
  meeting: (workspace: string) => Meeting;
  stop(): Promise<void>;
  port: number;
  tls: { ca: Buffer; certificate: Buffer; key: Buffer };
};
export type SandboxWorld = Omit<Fixture, 'replica'> & {
  newReplicaRow: Fixture['replica'];
  provider: LocalProvider;
  replica: Replica;
  folder: string;
  startReplica(options?: {
    port?: number;
    store?: WorkspaceStore;
    authenticate?: Authenticate;
    reportMs?: number;
  }): Promise<Replica>;
  own(workspace: WorkspaceRow, replica?: Replica): Promise<OwnedWorkspace>;
  run(
    owned: OwnedWorkspace,
    command: string,
    options?: {
      timeoutMs?: number;
      onOutput?: (c: OutputChunk) => void;
      signal?: AbortSignal;
      replica?: Replica;
      id?: string;
    },
  ): ReturnType<Executor['run']>;
};

export const TLS_NAME = 'lathe-turns.test.svc';
const log = createLogger(process.env['LATHE_TEST_LOG'] === undefined ? 'error' : 'debug');

export function useSandboxes(): SandboxWorld {
  const fixture = useStore();
  const world = fixture as unknown as SandboxWorld;
  let authority: Pair;
  const replicas: Replica[] = [];
  let ca: Buffer;

  beforeAll(async () => {
    world.folder = await mkdtemp(join(tmpdir(), 'lathe-sandboxes-'));
    authority = await newAuthority(new Date());
    ca = Buffer.from(authority.certificate);
    world.provider = localProvider({
      folder: world.folder,
      address: () => `127.0.0.1:${world.replica.port}`,
      tlsName: TLS_NAME,
      ca,
      control: world.control,
      ...(process.getuid?.() === 0
        ? {
            guestPrefix: [
              'unshare',
              '--pid',
              '--fork',
              '--kill-child',
              '--mount-proc',
              process.execPath,
              join(import.meta.dirname, 'init.mjs'),
            ],
          }
        : {}),
    });
    world.startReplica = async ({
      port = 0,
      store = world.store,
      authenticate = world.provider.authenticate,
      reportMs,
    } = {}) => {
      const leaf = await issueLeaf(
        authority,
        { commonName: 'lathe-turns', names: [TLS_NAME], addresses: ['127.0.0.1'] },
        new Date(),
      );
      const meeting = createMeetings();
      const stop = new AbortController();
      let address = `127.0.0.1:${port}`;
      const tls = { ca, certificate: Buffer.from(leaf.certificate), key: Buffer.from(leaf.key) };
      const cell: { ownership?: Ownership; executor?: Executor } = {};
      // The address is in the heartbeat, so the port has to be known first.
      const server = await startAttachServer({
        tls,
        address,
        store,
        ownership: lazy(() => cell.ownership),
        meeting,
        executor: () => cell.executor ?? fail(),
        authenticate,
        log,
      });
      address = `127.0.0.1:${server.port}`;
      const ownership = new Ownership({ store, replica: newId(), address, log });
      cell.ownership = ownership;
      const executor = createExecutor({
        store,
        ownership,
        provider: world.provider,
        meeting,
        log,
        ...(reportMs === undefined ? {} : { reportMs }),
      });
      cell.executor = executor;
      let running: Promise<void> | undefined;
      await new Promise<void>((ready) => (running = ownership.run(ready, stop.signal)));
      let stopped: Promise<void> | undefined;
      const replica: Replica = {
        ownership,
        executor,
        writer: createWriter({ store, ownership }),
        meeting,
        port: server.port,
        tls,
        stop: () =>
          (stopped ??= (async () => {
            stop.abort();
            await running;
            await server[Symbol.asyncDispose]();
          })()),
      };
      replicas.push(replica);
      return replica;
    };
    world.own = async (workspace, replica = world.replica) => {
      const owned = await replica.ownership.acquire(workspace);
      if ('redirect' in owned) throw new Error(`owned by ${owned.redirect}`);
      return owned;
    };
    world.run = (
      owned,
      command,
      {
        timeoutMs = 20_000,
        onOutput = () => undefined,
        signal = AbortSignal.timeout(50_000),
        replica = world.replica,
        id = newId(),
      } = {},
    ) => replica.executor.run(owned, { id, command, timeoutMs }, onOutput, signal);
    world.newReplicaRow = fixture.replica;
    world.replica = await world.startReplica();
  });
  afterAll(async () => {
    await world.provider?.close();
    for (const replica of replicas) await replica.stop();
    if (world.folder !== undefined) await rm(world.folder, { recursive: true, force: true });
  });
  return world;
}

/** The server needs the ownership that needs the server's port. */
function lazy(get: () => Ownership | undefined): Ownership {
  return new Proxy({} as Ownership, {
    get: (_, key) => {
      const ownership = get() ?? fail();
      const value = Reflect.get(ownership, key) as unknown;
      return typeof value === 'function' ? (value.bind(ownership) as unknown) : value;
    },
  });
}

function fail(): never {
  throw new Error('not yet');
}
