/** The turn controller's API for programs of the installation: run a command, follow a log, compare versions. mTLS only. */
import {
  Metadata,
  Server,
  ServerCredentials,
  status,
  type sendUnaryData,
  type ServerReadableStream,
  type ServerWritableStream,
} from '@grpc/grpc-js';
import {
  TurnsServiceService,
  type DiffRequest,
  type DiffResponse,
  type ExecRequest,
  type ExecResponse,
  type FollowRequest,
  type FollowResponse,
  type LogEvent as WireEvent,
  type TurnsServiceServer,
  type WorkspaceRef,
} from '../../proto/gen/lathe/turns/v1/turns.ts';
import { DEFAULTS } from '../../crds/defaults.ts';
import { parseDuration } from '../../crds/quantity.ts';
import { PermanentError, TransientError } from '../errors.ts';
import type { Tls } from '../sandboxes/attach-server.ts';
import type { Executor } from '../sandboxes/executor.ts';
import type { Ownership } from '../sandboxes/ownership.ts';
import type { Outcome } from '../sandboxes/outcome.ts';
import type { Writer } from '../sandboxes/writer.ts';
import { newId } from '../store/ids.ts';
import type { FileEntry, LogEvent, WorkspaceRow } from '../store/rows.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { Hub } from './hub.ts';
import { createImports, type ImportsStore } from './import-service.ts';
import { serveWrite } from './write-service.ts';

export type TurnsServiceOptions = Readonly<{
  tls: Tls;
  address: string;
  store: WorkspaceStore & ImportsStore;
  ownership: Ownership;
  executor: Executor;
  writer: Writer;
  hub: Hub;
}>;

const FOLLOWER_BYTES = 1024 * 1024;
/** The log is read at least this often, hub or not: another replica may be the one that writes. */
const POLL_MS = 1_000;
const DIFF_BYTES = 1024 * 1024;
const CODES: Readonly<Record<string, number>> = {
  NotFound: status.NOT_FOUND,
  FenceLost: status.ABORTED,
  BadRequest: status.INVALID_ARGUMENT,
  PathRefused: status.INVALID_ARGUMENT,
};

/** Listens until disposed. @returns the port */
export async function startTurnsService(options: TurnsServiceOptions): Promise<AsyncDisposable & { port: number }> {
  const { store, ownership, executor, writer, hub } = options;
  const server = new Server({ 'grpc.max_receive_message_length': 512 * 1024 });
  const imports = createImports({ store, ownership, find, onEvents: hub.changed });
  const service: TurnsServiceServer = {
    exec: (call) => void handle(call, exec),
    follow: (call) => void handle(call, follow),
    diff: (call) => void handle(call, diff),
    write: (call, reply) => void answer(call, reply, (signal) => serveWrite({ ownership, writer, find }, call, signal)),
    import: (call) => void handle(call, imports),
  };
  server.addService(TurnsServiceService, service);
  const credentials = ServerCredentials.createSsl(
    options.tls.ca,
    [{ cert_chain: options.tls.certificate, private_key: options.tls.key }],
    true,
  );
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync(options.address, credentials, (error, bound) => (error === null ? resolve(bound) : reject(error))),
  );
  return { port, [Symbol.asyncDispose]: async () => server.forceShutdown() };

  async function exec(
    request: ExecRequest,
    send: (r: ExecResponse) => Promise<void>,
    signal: AbortSignal,
  ): Promise<void> {
    const workspace = await find(request.workspace, signal);
    const owned = await ownership.acquire(workspace, signal);
    if ('redirect' in owned) return await send({ message: { $case: 'redirect', value: { address: owned.redirect } } });
    const id = newId();
    await send({ message: { $case: 'started', value: { execution: id } } });
    let open = true;
    const outcome = await executor.run(
      owned,
      {
        id,
        command: request.command,
        timeoutMs: request.timeoutMs === 0 ? (parseDuration(DEFAULTS.limits.commandTimeout) ?? 0) : request.timeoutMs,
        stdin: Buffer.from(request.stdin),
        ...(request.actor === '' ? {} : { actor: request.actor }),
        ...(request.idempotencyKey === '' ? {} : { idempotencyKey: request.idempotencyKey }),
      },
      ({ stderr, offset, data }) => {
        // A caller that is too slow or gone does not hold the command; the stored output has it all.
        if (open)
          void send({ message: { $case: 'output', value: { stderr, offset, data } } }).catch(() => (open = false));
      },
      // The end of the stream does not cancel the command.
      new AbortController().signal,
    );
    await send({ message: { $case: 'result', value: resultOf(outcome) } });
  }

  async function follow(
    request: FollowRequest,
    send: (r: FollowResponse) => Promise<void>,
    signal: AbortSignal,
  ): Promise<void> {
    const workspace = await find(request.workspace, signal);
    const turn =
      request.turn === '' ? undefined : await waitForTurn(workspace.id, request.turn, request.follow, signal);
    let after = request.after;
    const filter = {
      ...(request.session === '' ? {} : { session: request.session }),
      ...(turn === undefined ? {} : { turn }),
    };
    // Subscribed before the first read: nothing falls between.
    using live = hub.subscribe(workspace.id, FOLLOWER_BYTES);
    const readOn = async () => {
      for (;;) {
        const page = await store.readEvents(workspace.id, { ...filter, after }, signal);
        for (const event of page) {
          await send({ message: { $case: 'event', value: wireOf(event) } });
          after = event.seq;
        }
        if (page.length < 1_000) return;
      }
    };
    await readOn();
    while (request.follow && !signal.aborted) {
      const item = await live.next(POLL_MS, signal);
      if (live.overflowed())
        throw Object.assign(new Error(`over ${FOLLOWER_BYTES} bytes behind; come back with after=${after}`), {
          grpc: status.RESOURCE_EXHAUSTED,
        });
      if (item?.kind === 'delta') {
        if (turn === undefined || item.delta.turn === turn)
          await send({ message: { $case: 'delta', value: item.delta } });
      } else await readOn();
    }
  }

  async function diff(
    request: DiffRequest,
    send: (r: DiffResponse) => Promise<void>,
    signal: AbortSignal,
  ): Promise<void> {
    const workspace = await find(request.workspace, signal);
    const to = request.to === 0n ? (await store.head(workspace.id, signal)).head : request.to;
    for (const change of await store.changesBetween(workspace.id, request.from, to, signal)) {
      const { path, before, after } = change;
      const [old, now] = [await small(workspace, before, signal), await small(workspace, after, signal)];
      await send({
        path,
        change: before === undefined ? 'created' : after === undefined ? 'deleted' : 'changed',
        kind: (after ?? before)?.kind ?? 'regular',
        ...(old === undefined ? {} : { before: old }),
        ...(now === undefined ? {} : { after: now }),
      });
    }
  }

  async function small(
    workspace: WorkspaceRow,
    file: FileEntry | undefined,
    signal: AbortSignal,
  ): Promise<Buffer | undefined> {
    if (file?.target != null) return Buffer.from(file.target);
    if (file?.sha256 == null || file.size > DIFF_BYTES) return undefined;
    const pieces: Buffer[] = [];
    for await (const piece of store.readBlob(workspace.tenant, file.sha256, signal)) pieces.push(piece);
    return Buffer.concat(pieces);
  }

  async function find(ref: WorkspaceRef | undefined, signal: AbortSignal): Promise<WorkspaceRow> {
    const row = ref === undefined ? undefined : await store.findWorkspace(ref.namespace, ref.name, signal);
    if (row === undefined)
      throw new PermanentError(
        'NotFound',
        `there is no workspace ${ref?.namespace ?? ''}/${ref?.name ?? ''}; look with kubectl get workspaces -A`,
      );
    return row;
  }

  /** A Turn that was just applied may not be mirrored yet; a follower waits for it. */
  async function waitForTurn(workspace: string, name: string, wait: boolean, signal: AbortSignal): Promise<string> {
    for (;;) {
      const row = await store.findTurn(workspace, name, signal);
      if (row !== undefined) return row.id;
      if (!wait) throw new PermanentError('NotFound', `there is no turn ${name}`);
      signal.throwIfAborted();
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

type Writable<Req, Res> = ServerWritableStream<Req, Res>;

/** One door for errors: by reason to a status, with the reason in the metadata. */
async function handle<Req, Res>(
  call: Writable<Req, Res>,
  work: (request: Req, send: (r: Res) => Promise<void>, signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const abort = new AbortController();
  call.on('cancelled', () => abort.abort(new Error('the caller is gone')));
  call.on('error', () => abort.abort(new Error('the caller is gone')));
  const send = async (response: Res) => {
    if (abort.signal.aborted) return;
    if (call.write(response)) return;
    await new Promise<void>((resolve) => {
      const done = () => {
        call.off('drain', done).off('close', done).off('cancelled', done);
        resolve();
      };
      call.once('drain', done).once('close', done).once('cancelled', done);
    });
  };
  try {
    await work(call.request, send, abort.signal);
    call.end();
  } catch (error) {
    if (abort.signal.aborted) return;
    call.emit('error', statusOf(error));
  }
}

/** The same door for a call with one answer. */
async function answer<Req, Res>(
  call: ServerReadableStream<Req, Res>,
  reply: sendUnaryData<Res>,
  work: (signal: AbortSignal) => Promise<Res>,
): Promise<void> {
  const abort = new AbortController();
  call.on('cancelled', () => abort.abort(new Error('the caller is gone')));
  try {
    reply(null, await work(abort.signal));
  } catch (error) {
    if (!abort.signal.aborted) reply(statusOf(error));
  }
}

function statusOf(error: unknown): { code: number; details: string; metadata: Metadata } {
  const reason = error instanceof TransientError || error instanceof PermanentError ? error.reason : 'Unknown';
  const metadata = new Metadata();
  metadata.set('lathe-reason', reason);
  const own = error instanceof Error && 'grpc' in error && typeof error.grpc === 'number' ? error.grpc : undefined;
  const code =
    own ??
    CODES[reason] ??
    (error instanceof TransientError
      ? status.UNAVAILABLE
      : error instanceof PermanentError
        ? status.FAILED_PRECONDITION
        : status.INTERNAL);
  return { code, details: error instanceof Error ? error.message : String(error), metadata };
}

function wireOf(event: LogEvent): WireEvent {
  return {
    seq: event.seq,
    type: event.type,
    v: event.v,
    session: event.session ?? '',
    turn: event.turn ?? '',
    execution: event.execution ?? '',
    actor: event.actor ?? '',
    at: event.at.toISOString(),
    payloadJson: JSON.stringify(event.payload),
  };
}

function resultOf(
  o: Outcome & { execution: string },
): Extract<NonNullable<ExecResponse['message']>, { $case: 'result' }>['value'] {
  return {
    execution: o.execution,
    state: o.state,
    ...(o.exitCode === undefined ? {} : { exitCode: o.exitCode }),
    signal: o.signal ?? '',
    timedOut: o.timedOut,
    outOfMemory: o.outOfMemory,
    cancelled: o.cancelled,
    fromVersion: BigInt(o.fromVersion ?? 0),
    toVersion: BigInt(o.toVersion ?? 0),
    created: o.files.created,
    changed: o.files.changed,
    deleted: o.files.deleted,
    paths: o.files.paths,
    refusedJson: o.refused.length === 0 ? '' : JSON.stringify(o.refused),
    outputBytes: BigInt(o.outputBytes),
    droppedBytes: BigInt(o.droppedBytes),
    reason: o.reason ?? '',
  };
}
