/** One broker's stream while it is attached: what comes up is passed to whom it concerns, what goes down is numbered. */
import { status, type ServerDuplexStream } from '@grpc/grpc-js';
import type {
  AttachRequest,
  AttachResponse,
  BulkRequest,
  BulkResponse,
  Content,
  Hello,
} from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { TransientError } from '../errors.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { Authenticate } from './attach-server.ts';
import { giveContents } from './give-content.ts';
import { createInbox } from './inbox.ts';
import type { Meeting } from './meeting.ts';
import type { OwnedWorkspace } from './ownership.ts';
import type { Down, Session } from './session.ts';

export type AttachStream = ServerDuplexStream<AttachRequest, AttachResponse>;
export type BulkStream = ServerDuplexStream<BulkRequest, BulkResponse>;
export type AttachedOptions = Readonly<{
  id: string;
  call: AttachStream;
  hello: Hello;
  podUid: string;
  owned: OwnedWorkspace;
  meeting: Meeting;
  store: WorkspaceStore;
  authenticate: Authenticate;
  /** How long a token is good for; one that is not renewed by then ends the stream. */
  tokenMs?: number;
}>;

/** What the projected token lives (CONTRACTS 8). */
const TOKEN_MS = 600_000;
/** The broker opens bulk right after the welcome. */
const BULK_MS = 10_000;

export class Attached {
  readonly id: string;
  readonly session: Session;
  readonly meeting: Meeting;
  readonly owned: OwnedWorkspace;
  readonly #call: AttachStream;
  readonly #store: WorkspaceStore;
  readonly #authenticate: Authenticate;
  readonly #abort = new AbortController();
  readonly #bulk = Promise.withResolvers<BulkStream>();
  readonly #tokenMs: number;
  #guestAbort = new AbortController();
  #guest: Hello['guest'];
  #synced: bigint | undefined;
  #seq = 0n;
  #full = false;
  #heardAt = performance.now();
  #tokenTimer: NodeJS.Timeout | undefined;

  constructor({ id, call, hello, podUid, owned, meeting, store, authenticate, tokenMs = TOKEN_MS }: AttachedOptions) {
    this.id = id;
    this.meeting = meeting;
    this.owned = owned;
    this.#call = call;
    this.#store = store;
    this.#authenticate = authenticate;
    this.#tokenMs = tokenMs;
    this.#guest = hello.guest;
    this.#synced = hello.guest?.facts['synced'] === 'true' ? hello.guest.syncedVersion : undefined;
    this.session = {
      sandbox: hello.sandbox,
      boot: hello.boot,
      podUid,
      hello,
      signal: this.#abort.signal,
      send: (message) => this.#send(message),
      drained: () => (this.#full ? drained(call).then(() => void (this.#full = false)) : Promise.resolve()),
      sendContent: (content) => this.#sendContent(content),
      restart: (why) => this.end(status.ABORTED, why),
      answers: createInbox(),
      synced: () => this.#synced,
      setSynced: (version) => void (this.#synced = version),
      work: () => this.#guest?.work ?? '',
      guestConnected: () => this.#guest?.connected === true && !this.#abort.signal.aborted,
      treeIsEmpty: () => this.#guest?.facts['tree'] === 'empty',
      silentForMs: () => performance.now() - this.#heardAt,
      guestSignal: () => this.#guestAbort.signal,
    };
    owned.signal.addEventListener('abort', () => this.end(status.ABORTED, 'the workspace has another owner'), {
      once: true,
      signal: this.#abort.signal,
    });
    this.#bulk.promise.catch(() => undefined);
    this.#tokenIsGood();
  }

  welcome(): void {
    const { incarnation, epoch } = this.owned.lease;
    const resume = [...this.meeting.open()];
    this.#send({ $case: 'welcome', value: { protocol: 1, attach: this.id, incarnation, epoch, resume } });
    this.meeting.attach(this.session);
  }

  /** What a stream that was ended still delivers is not heard: its successor tells it anew. */
  async receive({ message }: AttachRequest): Promise<void> {
    if (this.#abort.signal.aborted) return;
    this.#heardAt = performance.now();
    switch (message?.$case) {
      case 'output':
      case 'finished':
      case 'offer':
      case 'lost':
        return await this.meeting.deliver(message, this.#abort.signal);
      case 'guest':
        return this.#setGuest(message.value);
      case 'synced':
        // Of what nobody asked for only the last is kept.
        this.session.answers.clear();
        return this.session.answers.push(message.value);
      case 'want':
        return await giveContents(this.#store, this.owned.workspace, this.session, message.value);
      case 'token':
        return await this.#check(message.value.token);
      case 'hello':
      case undefined:
        return;
    }
  }

  /** Its bulk connection, for as long as it lasts. */
  async serveBulk(call: BulkStream): Promise<void> {
    this.#bulk.resolve(call);
    const end = () => call.end();
    this.#abort.signal.addEventListener('abort', end, { once: true });
    try {
      for await (const { content } of call as AsyncIterable<BulkRequest>)
        if (content !== undefined) await this.meeting.content(content, this.#abort.signal);
    } finally {
      this.#abort.signal.removeEventListener('abort', end);
    }
  }

  end(code: number, message: string): void {
    if (this.#abort.signal.aborted) return;
    clearTimeout(this.#tokenTimer);
    const gone = new TransientError('SandboxLost', 'the sandbox is not attached any more');
    this.#abort.abort(gone);
    this.#guestAbort.abort(gone);
    this.#bulk.reject(gone);
    if (code === status.OK) this.#call.end();
    else this.#call.emit('error', { code, details: message });
  }

  #send(message: Down): void {
    if (this.#abort.signal.aborted) return;
    this.#full = !this.#call.write({ seq: (this.#seq += 1n), ack: 0n, message });
  }

  async #sendContent(content: Content): Promise<void> {
    const late = setTimeout(() => this.#bulk.reject(new Error('no bulk connection')), BULK_MS);
    const bulk = await this.#bulk.promise.finally(() => clearTimeout(late));
    if (bulk.destroyed) throw new TransientError('SandboxLost', 'the bulk connection is gone');
    if (!bulk.write({ content })) await drained(bulk);
    this.#heardAt = performance.now();
  }

  #setGuest(guest: NonNullable<Hello['guest']>): void {
    // Another guest process knows nothing of what the former one had.
    if (guest.work !== this.#guest?.work || !guest.connected) {
      this.#guestAbort.abort(new TransientError('SandboxLost', 'the work container went away'));
      this.#guestAbort = new AbortController();
    }
    // The guest knows best; one that is new, or lost track of its tree, is compared in full.
    this.#synced = guest.connected && guest.facts['synced'] === 'true' ? guest.syncedVersion : undefined;
    this.#guest = guest;
    this.meeting.changed();
  }

  /** An error of the API server is no refusal: the stream stays, the next refresh is looked at again. */
  async #check(token: string): Promise<void> {
    const { podUid } = this.session;
    const identity = await this.#authenticate(token).catch(() => ({ podUid }));
    if (identity?.podUid !== podUid) this.end(status.UNAUTHENTICATED, 'the token was refused');
    else this.#tokenIsGood();
  }

  #tokenIsGood(): void {
    clearTimeout(this.#tokenTimer);
    if (this.#abort.signal.aborted) return;
    const over = () => this.end(status.UNAUTHENTICATED, `no fresh token came within ${this.#tokenMs} ms`);
    this.#tokenTimer = setTimeout(over, this.#tokenMs).unref();
  }
}

function drained(stream: AttachStream | BulkStream): Promise<void> {
  if (!stream.writableNeedDrain || stream.destroyed) return Promise.resolve();
  return new Promise((resolve) => {
    const done = () => {
      stream.off('drain', done).off('close', done).off('error', done).off('cancelled', done);
      resolve();
    };
    stream.once('drain', done).once('close', done).once('error', done).once('cancelled', done);
  });
}
