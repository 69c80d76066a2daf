/** Where a workspace's commands meet whatever sandbox is attached at the moment; survives the sessions that come and go. */
import type { Content } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { createInbox, woken, type Inbox } from './inbox.ts';
import { WINDOW_BYTES, type News, type Session } from './session.ts';

/** News of one sandbox that wait to be read (CONTRACTS 6); beyond it its stream is not read on. */
const BACKLOG_BYTES = 4 * 1024 * 1024;
/** What any message costs, however small: millions of empty ones are a backlog too. */
const MESSAGE_BYTES = 256;

type Watch = { readonly inbox: Inbox<News>; received: bigint };

export class Meeting {
  readonly #watches = new Map<string, Watch>();
  readonly #contents = new Map<string, Inbox<Content>>();
  readonly #waiting = new Set<() => void>();
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
    for (const wake of [...this.#waiting]) wake();
  }

  /** A session that satisfies, now or later. Rejects with the signal's reason. */
  async sessionThat(holds: (session: Session) => boolean, signal: AbortSignal): Promise<Session> {
    for (;;) {
      signal.throwIfAborted();
      if (this.#session !== undefined && holds(this.#session)) return this.#session;
      await woken(this.#waiting, signal);
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
    this.#watches.get(execution)?.inbox.clear();
    this.#watches.delete(execution);
  }

  isWatched(execution: string): boolean {
    return this.#watches.has(execution);
  }

  /**
   * What nobody waits for is dropped: a pod can only speak of what it was sent. Resolves when the next may come, so that
   * a sandbox that talks faster than it is listened to waits.
   */
  async deliver(news: Exclude<News, { $case: 'attached' }>, signal: AbortSignal): Promise<void> {
    const watch = this.#watches.get(news.value.execution);
    if (watch === undefined) return;
    if (news.$case !== 'output') watch.inbox.push(news, sizeOf(news));
    else {
      // Sent again after a reconnect: what is known already is not counted twice.
      const known = Number(watch.received - news.value.offset);
      if (known < 0 || known >= news.value.data.length) return;
      const data = news.value.data.subarray(known);
      watch.inbox.push(
        { $case: 'output', value: { ...news.value, offset: watch.received, data } },
        data.length + MESSAGE_BYTES,
      );
      watch.received += BigInt(data.length);
    }
    await watch.inbox.room(BACKLOG_BYTES, signal);
  }

  /** What comes of these contents (hex) from now on, until it is disposed of. */
  expect(hashes: readonly string[]): Disposable & Readonly<{ inbox: Inbox<Content> }> {
    const inbox = createInbox<Content>();
    for (const hex of hashes) this.#contents.set(hex, inbox);
    return {
      inbox,
      [Symbol.dispose]: () => {
        for (const hex of hashes) if (this.#contents.get(hex) === inbox) this.#contents.delete(hex);
        inbox.clear();
      },
    };
  }

  /** Resolves when the next piece may come. */
  async content(content: Content, signal: AbortSignal): Promise<void> {
    const inbox = this.#contents.get(content.sha256.toString('hex'));
    if (inbox === undefined) return;
    inbox.push(content, content.data.length + MESSAGE_BYTES);
    await inbox.room(BACKLOG_BYTES, signal);
  }
}

function sizeOf(news: Exclude<News, { $case: 'attached' | 'output' }>): number {
  if (news.$case !== 'offer') return MESSAGE_BYTES;
  const { changes, skipped } = news.value;
  let bytes = MESSAGE_BYTES * (1 + changes.length + skipped.length);
  for (const entry of changes) bytes += entry.path.length + entry.target.length + (entry.inline?.length ?? 0);
  return bytes;
}
