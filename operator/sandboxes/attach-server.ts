/** The gRPC side that brokers dial: who they are, whose workspace it is, and the streams while they are attached. */
import { randomUUID } from 'node:crypto';
import { Server, ServerCredentials, status, type ServerDuplexStream } from '@grpc/grpc-js';
import {
  SandboxServiceService,
  type AttachRequest,
  type AttachResponse,
  type BulkRequest,
  type BulkResponse,
  type Hello,
  type SandboxServiceServer,
} from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { TransientError } from '../errors.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { Logger } from '../telemetry/log.ts';
import type { Executor } from './executor.ts';
import type { OwnedWorkspace, Ownership } from './ownership.ts';
import type { Down, Meeting, Session } from './session.ts';

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
}>;

const HELLO_MS = 5_000;
const MAX_MESSAGE = 512 * 1024;
type Stream = ServerDuplexStream<AttachRequest, AttachResponse>;
type BulkStream = ServerDuplexStream<BulkRequest, BulkResponse>;
type Attached = {
  session: Session;
  meeting: Meeting;
  owned: OwnedWorkspace;
  bulk: BulkStream | undefined;
  setGuest(guest: Hello['guest']): void;
  end(code: number, message: string): void;
};

/** Listens until disposed. @returns the port */
export async function startAttachServer(options: AttachServerOptions): Promise<AsyncDisposable & { port: number }> {
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
    attach: (call) =>
      void serveAttach(call).catch((error: unknown) => options.log.warn('an attach failed', { err: error })),
    bulk: (call) => void serveBulk(call).catch(() => call.end()),
  };
  server.addService(SandboxServiceService, service);
  const credentials = ServerCredentials.createSsl(
    options.tls.ca,
    [{ cert_chain: options.tls.certificate, private_key: options.tls.key }],
    false,
  );
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

  async function serveAttach(call: Stream): Promise<void> {
    // grpc-js reports a vanished peer as an error of the stream; the iteration below ends with it.
    call.on('error', () => undefined);
    const fail = (code: number, message: string) => void call.emit('error', { code, details: message });
    const identity = await identify(call, fail);
    if (identity === undefined) return;
    const incoming = (call as AsyncIterable<AttachRequest>)[Symbol.asyncIterator]();
    const first = await Promise.race([incoming.next(), timeout(HELLO_MS)]).catch(() => undefined);
    const hello = first === undefined || first.done === true ? undefined : first.value.message;
    if (hello?.$case !== 'hello')
      return fail(status.DEADLINE_EXCEEDED, `the first message must be a hello, within ${HELLO_MS} ms`);
    if (hello.value.protocolMin > 1)
      return fail(
        status.FAILED_PRECONDITION,
        `this server speaks protocol 1, the broker ${hello.value.protocolMin} and up`,
      );

    const one = await admit(call, hello.value, identity.podUid, fail);
    if (one === undefined) return;
    const { session, meeting, owned } = one;
    options.log.info('a sandbox attached', { workspace: owned.workspace.id, sandbox: session.sandbox });
    try {
      await options.ownership.using(owned, async () => {
        for (;;) {
          const next = await incoming.next();
          if (next.done === true) return;
          await receive(one, next.value);
        }
      });
    } catch {
      // The stream broke; the broker comes back.
    } finally {
      one.end(status.OK, '');
      meeting.detach(session);
      if (bySandbox.get(session.sandbox) === one) {
        bySandbox.delete(session.sandbox);
        await options.store.detachSandbox(session.sandbox, options.ownership.replica).catch(() => undefined);
      }
    }
  }

  /** Undefined: it was told why not. */
  async function admit(
    call: Stream,
    hello: Hello,
    podUid: string,
    fail: (code: number, message: string) => void,
  ): Promise<Attached | undefined> {
    let row;
    let owned;
    try {
      row = await options.store.attachSandbox({
        sandbox: hello.sandbox,
        podUid,
        boot: hello.boot,
        replica: options.ownership.replica,
        facts: hello.guest?.facts ?? {},
      });
      if (row === undefined) return void fail(status.PERMISSION_DENIED, `sandbox ${hello.sandbox} is not this pod's`);
      owned = await options.ownership.acquire(row.workspace);
    } catch (error) {
      return void fail(status.UNAVAILABLE, error instanceof Error ? error.message : 'not now');
    }
    if ('redirect' in owned) {
      call.write({
        seq: 1n,
        ack: 1n,
        message: { $case: 'redirect', value: { address: owned.redirect, incarnation: 0n, epoch: 0n } },
      });
      return void call.end();
    }
    const meeting = options.meeting(row.workspace.id);
    const open = await options.store.openExecutions(row.workspace.id).catch(() => undefined);
    if (open === undefined) return void fail(status.UNAVAILABLE, 'the store is away');
    // Watched before the welcome: what the broker then sends is kept for whoever adopts it.
    const orphans = open.filter((x) => !meeting.isWatched(x.id));
    for (const { id } of orphans) meeting.watch(id);

    bySandbox.get(hello.sandbox)?.end(status.ABORTED, 'the sandbox attached anew');
    const abort = new AbortController();
    let seq = 0n;
    let synced = hello.guest?.facts['synced'] === 'true' ? hello.guest.syncedVersion : undefined;
    let guest = hello.guest;
    const id = randomUUID();
    const send = (message: Down) => void (abort.signal.aborted || call.write({ seq: (seq += 1n), ack: 0n, message }));
    const session: Session = {
      sandbox: hello.sandbox,
      boot: hello.boot,
      podUid,
      hello,
      signal: abort.signal,
      send,
      sendContent: async (content) => {
        const bulk = await bulkOf(one, abort.signal);
        if (!bulk.write({ content })) await drained(bulk);
      },
      synced: () => synced,
      setSynced: (version) => void (synced = version),
      work: () => guest?.work ?? '',
      guestConnected: () => guest?.connected === true,
    };
    const one: Attached = {
      session,
      meeting,
      owned,
      bulk: undefined,
      end: (code, message) => {
        if (abort.signal.aborted) return;
        abort.abort(new TransientError('SandboxLost', 'the sandbox is not attached any more'));
        if (code === status.OK) call.end();
        else fail(code, message);
      },
      setGuest: (g) => {
        // The guest knows best; one that is new, or lost track of its tree, is compared in full.
        synced = g?.connected === true && g.facts['synced'] === 'true' ? g.syncedVersion : undefined;
        guest = g;
        meeting.changed();
      },
    };
    owned.signal.addEventListener('abort', () => one.end(status.ABORTED, 'the workspace has another owner'), {
      once: true,
    });
    attached.set(id, one);
    bySandbox.set(hello.sandbox, one);
    send({
      $case: 'welcome',
      value: {
        protocol: 1,
        attach: id,
        incarnation: owned.lease.incarnation,
        epoch: owned.lease.epoch,
        resume: [...meeting.open()],
      },
    });
    meeting.attach(session);
    abort.signal.addEventListener('abort', () => attached.delete(id), { once: true });
    // A command without a turn has nobody else to finish it.
    for (const x of orphans.filter((o) => o.turn === null)) {
      void options
        .executor()
        .adopt(owned, x.id, () => undefined, owned.signal)
        .catch((err: unknown) => options.log.warn('an execution was not adopted', { execution: x.id, err }));
    }
    return one;
  }

  async function receive(one: Attached, request: AttachRequest): Promise<void> {
    const { message } = request;
    switch (message?.$case) {
      case 'output':
      case 'finished':
      case 'offer':
      case 'lost':
        return one.meeting.deliver(message);
      case 'guest':
        return one.setGuest(message.value);
      case 'synced':
        return one.meeting.synced.push(message.value);
      case 'want': {
        for (const sha256 of message.value.sha256) await giveContent(one, Buffer.from(sha256));
        return;
      }
      case 'token': {
        // An error of the API server is no refusal: the stream stays, the next refresh is looked at again.
        const identity = await options.authenticate(message.value.token).catch(() => ({ podUid: one.session.podUid }));
        if (identity?.podUid !== one.session.podUid) one.end(status.UNAUTHENTICATED, 'the token was refused');
        return;
      }
      case 'hello':
      case undefined:
        return;
    }
  }

  /** Only what this workspace has; anything else is "not found", whoever has it. */
  async function giveContent(one: Attached, sha256: Buffer): Promise<void> {
    const none = (error: string) =>
      one.session.sendContent({ sha256, offset: 0n, data: Buffer.alloc(0), last: true, error });
    try {
      const { id, tenant } = one.owned.workspace;
      if (!(await options.store.knownHashes(id, [sha256])).has(sha256.toString('hex'))) return await none('not found');
      let offset = 0n;
      let held: Buffer | undefined;
      for await (const piece of options.store.readBlob(tenant, sha256)) {
        if (held !== undefined) {
          await one.session.sendContent({ sha256, offset, data: held, last: false, error: '' });
          offset += BigInt(held.length);
        }
        held = piece;
      }
      await one.session.sendContent({ sha256, offset, data: held ?? Buffer.alloc(0), last: true, error: '' });
    } catch (error) {
      if (!one.session.signal.aborted) await none(error instanceof Error ? error.message : 'it could not be read');
    }
  }

  async function serveBulk(call: BulkStream): Promise<void> {
    call.on('error', () => undefined);
    const fail = (code: number, message: string) => void call.emit('error', { code, details: message });
    const one = attached.get(String(call.metadata.get('lathe-attach')[0] ?? ''));
    if (one === undefined || (await identify(call, fail))?.podUid !== one.session.podUid)
      return fail(status.PERMISSION_DENIED, 'no such attach');
    one.bulk = call;
    one.meeting.changed();
    one.session.signal.addEventListener('abort', () => call.end(), { once: true });
    for await (const { content } of call as AsyncIterable<BulkRequest>)
      if (content !== undefined) one.meeting.content(content);
  }

  async function identify(
    call: Stream | BulkStream,
    fail: (code: number, message: string) => void,
  ): Promise<{ podUid: string } | undefined> {
    const [header] = call.metadata.get('authorization');
    const token = /^Bearer (.+)$/.exec(String(header ?? ''))?.[1];
    if (token === undefined) return void fail(status.UNAUTHENTICATED, 'a bearer token is needed');
    try {
      const identity = await options.authenticate(token);
      if (identity === undefined) fail(status.UNAUTHENTICATED, 'the token was refused');
      return identity;
    } catch {
      return void fail(status.UNAVAILABLE, 'the token could not be checked; dial again');
    }
  }
}

/** Opened by the broker right after the welcome. */
async function bulkOf(one: Attached, signal: AbortSignal): Promise<BulkStream> {
  if (one.bulk === undefined)
    await one.meeting.sessionThat(
      () => one.bulk !== undefined || signal.aborted,
      AbortSignal.any([signal, AbortSignal.timeout(10_000)]),
    );
  if (one.bulk === undefined) throw new TransientError('SandboxLost', 'the sandbox has no bulk connection');
  return one.bulk;
}

function drained(stream: BulkStream): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      stream.off('drain', done).off('close', done).off('error', done);
      resolve();
    };
    stream.once('drain', done).once('close', done).once('error', done);
  });
}

function timeout(ms: number): Promise<undefined> {
  return new Promise((resolve) => setTimeout(resolve, ms, undefined).unref());
}
