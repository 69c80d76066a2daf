/** The gRPC side that brokers dial: who they are, and whose workspace it is. */
import { randomUUID } from 'node:crypto';
import { Server, ServerCredentials, status } from '@grpc/grpc-js';
import {
  SandboxServiceService,
  type AttachRequest,
  type Hello,
  type SandboxServiceServer,
} from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { Logger } from '../telemetry/log.ts';
import { Attached, type AttachStream, type BulkStream } from './attached.ts';
import type { Executor } from './executor.ts';
import type { Meeting } from './meeting.ts';
import type { Ownership } from './ownership.ts';

/** The pod that a token was issued to; undefined: refused. @throws TransientError when that can't be told now */
export type Authenticate = (token: string) => Promise<{ podUid: string } | undefined>;
export type Tls = Readonly<{ ca: Buffer; certificate: Buffer; key: Buffer }>;
export type AttachServerOptions = Readonly<{
  tls: Tls;
  /** `host:port`; port 0 takes any. */
  address: string;
  store: WorkspaceStore;
  ownership: Ownership;
  meeting: (workspace: string) => Meeting;
  executor: () => Executor;
  authenticate: Authenticate;
  log: Logger;
  tokenMs?: number;
}>;
type Refuse = (code: number, message: string) => undefined;

const HELLO_MS = 5_000;
const MAX_MESSAGE = 512 * 1024;
const PROTOCOL = 1;

/** Listens until disposed. @returns the port */
export async function startAttachServer(options: AttachServerOptions): Promise<AsyncDisposable & { port: number }> {
  const { store, ownership, log } = options;
  const attached = new Map<string, Attached>();
  const bySandbox = new Map<string, Attached>();
  const server = new Server({
    'grpc.max_receive_message_length': MAX_MESSAGE,
    'grpc.max_metadata_size': 8 * 1024,
    'grpc.keepalive_time_ms': 5_000,
    'grpc.keepalive_timeout_ms': 5_000,
    'grpc.http2.min_time_between_pings_ms': 1_000,
  });
  const service: SandboxServiceServer = {
    attach: (call) => void serveAttach(call).catch((err: unknown) => log.warn('an attach failed', { err })),
    bulk: (call) => void serveBulk(call).catch(() => call.end()),
  };
  server.addService(SandboxServiceService, service);
  const { ca, certificate, key } = options.tls;
  const credentials = ServerCredentials.createSsl(ca, [{ cert_chain: certificate, private_key: key }], false);
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync(options.address, credentials, (error, bound) => (error === null ? resolve(bound) : reject(error))),
  );
  return {
    port,
    [Symbol.asyncDispose]: async () => {
      for (const one of attached.values()) one.end(status.UNAVAILABLE, 'this replica stops');
      server.forceShutdown();
    },
  };

  async function serveAttach(call: AttachStream): Promise<void> {
    const refuse = refuserOf(call);
    const identity = await identify(call, refuse);
    if (identity === undefined) return;
    const incoming = (call as AsyncIterable<AttachRequest>)[Symbol.asyncIterator]();
    const first = await Promise.race([incoming.next(), timeout(HELLO_MS)]).catch(() => undefined);
    const hello = first === undefined || first.done === true ? undefined : first.value.message;
    if (hello?.$case !== 'hello')
      return refuse(status.DEADLINE_EXCEEDED, `the first message must be a hello, within ${HELLO_MS} ms`);
    const { protocolMin, protocolMax } = hello.value;
    if (protocolMin > PROTOCOL || protocolMax < PROTOCOL) {
      const theirs = `${protocolMin} to ${protocolMax}`;
      return refuse(status.FAILED_PRECONDITION, `this server speaks protocol ${PROTOCOL}, the broker ${theirs}`);
    }
    const one = await admit(call, hello.value, identity.podUid, refuse);
    if (one === undefined) return;
    const { session, meeting, owned } = one;
    log.info('a sandbox attached', { workspace: owned.workspace.id, sandbox: session.sandbox });
    try {
      await ownership.using(owned, async () => {
        for (let next = await incoming.next(); next.done !== true; next = await incoming.next())
          await one.receive(next.value);
      });
    } catch {
      // The stream broke; the broker comes back.
    } finally {
      one.end(status.OK, '');
      attached.delete(one.id);
      meeting.detach(session);
      if (bySandbox.get(session.sandbox) === one) {
        bySandbox.delete(session.sandbox);
        await store.detachSandbox(session.sandbox, ownership.replica).catch(() => undefined);
      }
    }
  }

  /** Undefined: it was told why not. */
  async function admit(
    call: AttachStream,
    hello: Hello,
    podUid: string,
    refuse: Refuse,
  ): Promise<Attached | undefined> {
    const { sandbox, boot } = hello;
    const facts = hello.guest?.facts ?? {};
    try {
      const row = await store.attachSandbox({ sandbox, podUid, boot, replica: ownership.replica, facts });
      if (row === undefined) return refuse(status.PERMISSION_DENIED, `sandbox ${sandbox} is not this pod's`);
      const owned = await ownership.acquire(row.workspace);
      if ('redirect' in owned) {
        const value = { address: owned.redirect, incarnation: 0n, epoch: 0n };
        call.write({ seq: 1n, ack: 1n, message: { $case: 'redirect', value } });
        call.end();
        return undefined;
      }
      const open = await store.openExecutions(row.workspace.id);
      const meeting = options.meeting(row.workspace.id);
      // Watched before the welcome: what the broker then sends is kept for whoever adopts it.
      const orphans = open.filter((x) => !meeting.isWatched(x.id));
      for (const { id } of orphans) meeting.watch(id);
      const former = bySandbox.get(sandbox);
      if (former !== undefined) {
        former.end(status.ABORTED, 'the sandbox attached anew');
        meeting.detach(former.session);
      }
      const { authenticate, tokenMs } = options;
      const more = tokenMs === undefined ? {} : { tokenMs };
      const id = randomUUID();
      const one = new Attached({ id, call, hello, podUid, owned, meeting, store, authenticate, ...more });
      attached.set(id, one);
      bySandbox.set(sandbox, one);
      one.welcome();
      // A command without a turn has nobody else to finish it.
      for (const x of orphans.filter((o) => o.turn === null)) {
        void options
          .executor()
          .adopt(owned, x.id, () => undefined, owned.signal)
          .catch((err: unknown) => log.warn('an execution was not adopted', { execution: x.id, err }));
      }
      return one;
    } catch (error) {
      return refuse(status.UNAVAILABLE, error instanceof Error ? error.message : 'not now');
    }
  }

  async function serveBulk(call: BulkStream): Promise<void> {
    const refuse = refuserOf(call);
    const identity = await identify(call, refuse);
    if (identity === undefined) return;
    const one = attached.get(String(call.metadata.get('lathe-attach')[0] ?? ''));
    if (one?.session.podUid !== identity.podUid) return refuse(status.PERMISSION_DENIED, 'no such attach');
    await one.serveBulk(call);
  }

  async function identify(call: AttachStream | BulkStream, refuse: Refuse): Promise<{ podUid: string } | undefined> {
    const [header] = call.metadata.get('authorization');
    const token = /^Bearer (.+)$/.exec(String(header ?? ''))?.[1];
    if (token === undefined) return refuse(status.UNAUTHENTICATED, 'a bearer token is needed');
    try {
      return (await options.authenticate(token)) ?? refuse(status.UNAUTHENTICATED, 'the token was refused');
    } catch {
      return refuse(status.UNAVAILABLE, 'the token could not be checked; dial again');
    }
  }
}

function refuserOf(call: AttachStream | BulkStream): Refuse {
  // grpc-js reports a vanished peer as an error of the stream; whoever reads it sees it end.
  call.on('error', () => undefined);
  return (code, details) => void call.emit('error', { code, details });
}

function timeout(ms: number): Promise<undefined> {
  return new Promise((resolve) => setTimeout(resolve, ms, undefined).unref());
}
