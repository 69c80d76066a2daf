/** One attached sandbox, and the place where the workspace's commands meet whatever sandbox is attached at the moment. */
import { createHash } from 'node:crypto';
import type { AttachRequest, AttachResponse, Content, Hello } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { TransientError } from '../errors.ts';
import { createInbox, type Inbox } from './inbox.ts';

export type Up = NonNullable<AttachRequest['message']>;
export type Down = NonNullable<AttachResponse['message']>;

export const WINDOW_BYTES = 1024 * 1024;

/** What is told of one execution, whichever attach it comes through. */
export type News =
  | Extract<Up, { $case: 'output' | 'finished' | 'offer' | 'lost' }>
  /** A sandbox attached (again). `knows`: it has this execution; `sameBoot`: it is the one it was sent to. */
  | Readonly<{ $case: 'attached'; session: Session; knows: boolean; boot: string }>;

/** One stream of one broker. */
export type Session = Readonly<{
  sandbox: string;
  boot: string;
  podUid: string;
  hello: Hello;
  /** Aborts when the stream ends. */
  signal: AbortSignal;
  send(message: Down): void;
  sendContent(content: Content): Promise<void>;
  /** What the guest says of its tree; undefined: unknown, or no guest. */
  synced(): bigint | undefined;
  setSynced(version: bigint | undefined): void;
  /** The guest process; changes when the work container was replaced. */
  work(): string;
  guestConnected(): boolean;
}>;

/** Of one workspace: survives the sessions that come and go. */
export class Meeting {
  readonly #watches = new Map<string, { inbox: Inbox<News>; received: bigint }>();
  readonly #contents = new Map<string, Inbox<Content>>();
  readonly #waiting = new Set<() => void>();
  readonly synced: Inbox<{ version: bigint; error: string }> = createInbox();
  #session: Session | undefined;

  get session(): Session | undefined {
    return this.#session;
  }

  /** Everything that is waited for; what is not in it the broker forgets. */
  open(): readonly Readonly<{ execution: string; outputOffset: bigint; outputCredit: bigint }>[] {
    return [...this.#watches].map(([execution, w]) => ({
      execution,
      outputOffset: w.received,
      outputCredit: w.received + BigInt(WINDOW_BYTES),
    }));
  }

  attach(session: Session): void {
    this.#session = session;
    const known = new Set(session.hello.inventory.map((state) => state.execution));
    for (const [execution, { inbox }] of this.#watches) {
      inbox.push({ $case: 'attached', session, knows: known.has(execution), boot: session.boot });
    }
    this.changed();
  }

  detach(session: Session): void {
    if (this.#session === session) this.#session = undefined;
    this.changed();
  }

  /** Something about the session changed; whoever waits looks again. */
  changed(): void {
    for (const wake of this.#waiting) wake();
  }

  /** A session that satisfies, now or later. */
  async sessionThat(holds: (session: Session) => boolean, signal: AbortSignal): Promise<Session> {
    for (;;) {
      signal.throwIfAborted();
      if (this.#session !== undefined && holds(this.#session)) return this.#session;
      await new Promise<void>((resolve) => {
        const wake = () => {
          this.#waiting.delete(wake);
          signal.removeEventListener('abort', wake);
          resolve();
        };
        this.#waiting.add(wake);
        signal.addEventListener('abort', wake, { once: true });
      });
    }
  }

  /** News of this execution is kept from here on, until `unwatch`. */
  watch(execution: string): Inbox<News> {
    const found = this.#watches.get(execution);
    if (found !== undefined) return found.inbox;
    const inbox = createInbox<News>();
    this.#watches.set(execution, { inbox, received: 0n });
    return inbox;
  }

  unwatch(execution: string): void {
    this.#watches.delete(execution);
  }

  isWatched(execution: string): boolean {
    return this.#watches.has(execution);
  }

  /** What nobody waits for is dropped: a pod can only speak of what it was sent. */
  deliver(news: Exclude<News, { $case: 'attached' }>): void {
    const watch = this.#watches.get(news.value.execution);
    if (watch === undefined) return;
    if (news.$case === 'output') {
      // Sent again after a reconnect: the part that is known is not counted twice.
      if (news.value.offset !== watch.received) return;
      watch.received += BigInt(news.value.data.length);
    }
    watch.inbox.push(news);
  }

  /** One content that the sandbox was asked for; hashed here, since an offered hash proves nothing. */
  async receive(
    session: Session,
    execution: string,
    sha256: Buffer,
    size: number,
    signal: AbortSignal,
  ): Promise<Buffer | undefined> {
    const hex = sha256.toString('hex');
    const inbox = createInbox<Content>();
    this.#contents.set(hex, inbox);
    try {
      session.send({ $case: 'want', value: { execution, sha256: [sha256] } });
      const pieces: Buffer[] = [];
      let bytes = 0;
      for (;;) {
        const piece = await inbox.next(AbortSignal.any([signal, session.signal]));
        if (piece.error !== '') return undefined;
        bytes += piece.data.length;
        if (bytes > size) return undefined;
        pieces.push(piece.data);
        if (piece.last) break;
      }
      const content = Buffer.concat(pieces, bytes);
      return createHash('sha256').update(content).digest().equals(sha256) ? content : undefined;
    } catch (error) {
      if (session.signal.aborted && !signal.aborted)
        throw new TransientError('SandboxLost', 'the sandbox went away while a file was taken from it', {
          cause: error,
        });
      throw error;
    } finally {
      this.#contents.delete(hex);
    }
  }

  content(content: Content): void {
    this.#contents.get(content.sha256.toString('hex'))?.push(content);
  }
}
