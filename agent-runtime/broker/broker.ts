/**
 * Between guest and owner: passes messages on, writes down what must survive, obeys the highest owner only. Knows nothing
 * of sockets; both links may come and go at any time, and whoever waits for an answer from one that went is told.
 */
import type {
  AttachRequest,
  AttachResponse,
  Content,
  GuestHello,
  Hello,
  Welcome,
} from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { WriteFrame } from '../frames.ts';
import { NO_GUEST, statusOf, synced, unsynced } from './guest-status.ts';
import { takeReport } from './guest-report.ts';
import { isOffered, type Entry, type Journal } from './journal.ts';
import { inventoryOf } from './inventory.ts';
import { Outbox } from './outbox.ts';
import { Wants } from './wants.ts';

export type Up = NonNullable<AttachRequest['message']>;
export type Down = NonNullable<AttachResponse['message']>;
export type GuestLink = Readonly<{ control: WriteFrame; content(content: Content): Promise<void> }>;
export type TurnsLink = Readonly<{ send(message: Up): void; content(content: Content): Promise<void> | undefined }>;

const VERSION = '1';

export class Broker {
  readonly #journal: Journal;
  readonly #sandbox: string;
  #guest: GuestLink | undefined;
  #turns: TurnsLink | undefined;
  #status = NO_GUEST;
  /** Of the guest's connection: the last message that was taken in. */
  #guestSeq = 0n;
  /** Of the owner's: what it still has to be told. */
  #outboxes = new Map<string, Outbox>();
  readonly #turnsWants = new Wants();
  readonly #guestWants = new Wants();
  /** The version that the guest was asked to go to. */
  #syncing: bigint | undefined;

  constructor(sandbox: string, journal: Journal) {
    this.#sandbox = sandbox;
    this.#journal = journal;
  }

  hello(): Hello {
    // With something unsettled nobody can say yet which version the tree is.
    const guest = this.#journal.entries.size === 0 ? this.#status : unsynced(this.#status);
    return {
      protocolMin: 1,
      protocolMax: 1,
      sandbox: this.#sandbox,
      boot: this.#journal.boot,
      brokerVersion: VERSION,
      inventory: [...this.#journal.entries.values()].map(inventoryOf),
      guest,
      ...this.#journal.owner,
    };
  }

  /** False: an owner below one that was obeyed before; it is not attached to. */
  attachTurns(link: TurnsLink, { incarnation, epoch, resume }: Welcome): boolean {
    const { owner } = this.#journal;
    if (incarnation < owner.incarnation || (incarnation === owner.incarnation && epoch < owner.epoch)) return false;
    this.#journal.obey({ incarnation, epoch });
    this.#turns = link;
    this.#outboxes = new Map();
    const wanted = new Map(resume.map((one) => [one.execution, one]));
    for (const entry of this.#journal.entries.values()) {
      const one = wanted.get(entry.dispatch.execution);
      if (one === undefined) {
        // Nobody waits for it any more, and nobody says what became of its diff.
        this.#journal.settled(entry);
        this.#status = unsynced(this.#status);
        continue;
      }
      if (one.outputCredit > entry.credit) entry.credit = one.outputCredit;
      const outbox = new Outbox(entry, one.outputOffset, one.outputCredit, link.send);
      this.#outboxes.set(entry.dispatch.execution, outbox);
    }
    link.send({ $case: 'guest', value: this.#status });
    this.#welcomeGuest(new Set(this.#journal.entries.keys()));
    for (const outbox of this.#outboxes.values()) outbox.push();
    return true;
  }

  detachTurns(link: TurnsLink): void {
    if (this.#turns !== link) return;
    this.#turns = undefined;
    this.#outboxes = new Map();
    this.#turnsWants.fail('');
    this.#tellGuest(this.#guestWants.fail('the owner went away'));
  }

  /** Resolves when more may come: a tree is larger than what we hold of it. */
  fromTurns(message: Down): Promise<void> | undefined {
    switch (message.$case) {
      case 'dispatch': {
        if (this.#turns === undefined || this.#journal.entries.has(message.value.execution)) return undefined;
        // With a guest there it is taken at once, in the same write.
        const work = this.#guest === undefined ? undefined : this.#status.work;
        const entry = this.#journal.dispatched(message.value, work);
        this.#outboxes.set(message.value.execution, new Outbox(entry, 0n, entry.credit, this.#turns.send));
        return this.#hand(entry);
      }
      case 'credit': {
        const { execution, outputCredit } = message.value;
        const entry = this.#journal.entries.get(execution);
        if (entry !== undefined && outputCredit > entry.credit) entry.credit = outputCredit;
        this.#outboxes.get(execution)?.grant(outputCredit);
        return this.#down(message);
      }
      case 'cancel': {
        const entry = this.#journal.entries.get(message.value.execution);
        if (entry !== undefined) entry.cancelled = true;
        return this.#down(message);
      }
      case 'settle': {
        const sent = this.#down(message);
        const entry = this.#journal.entries.get(message.value.execution);
        if (message.value.last && entry !== undefined) {
          this.#outboxes.delete(message.value.execution);
          this.#journal.settled(entry);
          // If that is not what it came to, the guest says so.
          if (this.#status.facts['synced'] === 'true') this.#status = synced(this.#status, message.value.version);
        }
        return sent;
      }
      case 'collect': {
        const entry = this.#journal.entries.get(message.value.execution);
        if (entry !== undefined) this.#journal.offerAgain(entry);
        this.#outboxes.get(message.value.execution)?.offerAgain();
        return this.#down(message);
      }
      case 'want':
        this.#turnsWants.asked(message.value.sha256);
        if (this.#guest === undefined) this.#tellTurns(this.#turnsWants.fail('the work container is gone'));
        return this.#down(message);
      case 'sync':
        this.#syncing = message.value.toVersion;
        this.#status = unsynced(this.#status);
        if (this.#guest === undefined && message.value.last) this.#failSync('there is no work container');
        return this.#down(message);
      // The connection's own.
      case 'welcome':
      case 'redirect':
        return undefined;
    }
  }

  /** The newest connection is the guest. */
  attachGuest(link: GuestLink, hello: GuestHello): void {
    if (this.#guest !== undefined) this.detachGuest(this.#guest);
    this.#guest = link;
    this.#guestSeq = 0n;
    const known = new Set(hello.inventory.map(({ execution }) => execution));
    this.#status = statusOf(hello.status ?? NO_GUEST);
    // It was not told how something ended that we have forgotten: it will be compared.
    if ([...known].some((execution) => !this.#journal.entries.has(execution))) this.#status = unsynced(this.#status);
    this.#turns?.send({ $case: 'guest', value: this.#status });
    this.#welcomeGuest(known);
    for (const entry of this.#journal.entries.values()) {
      if (!known.has(entry.dispatch.execution)) this.#unknownToGuest(entry);
      else if (entry.cancelled) void this.#down({ $case: 'cancel', value: { execution: entry.dispatch.execution } });
    }
  }

  detachGuest(link: GuestLink): void {
    if (this.#guest !== link) return;
    this.#guest = undefined;
    this.#status = { ...this.#status, connected: false };
    this.#turns?.send({ $case: 'guest', value: this.#status });
    this.#guestWants.fail('');
    this.#tellTurns(this.#turnsWants.fail('the work container is gone'));
    if (this.#syncing !== undefined) this.#failSync('the work container is gone');
  }

  /** @throws Error when it is nothing that a guest of ours says; its connection is then closed */
  fromGuest(link: GuestLink, { seq, message }: AttachRequest): void {
    if (this.#guest !== link || message === undefined) return;
    switch (message.$case) {
      case 'output':
      case 'finished':
      case 'offer': {
        const { execution } = message.value;
        const entry = this.#journal.entries.get(execution);
        // Of none that was sent here; or of a look at the tree that no execution asked for.
        if (entry === undefined) {
          if (message.$case === 'offer' && execution === '') this.#turns?.send(message);
          break;
        }
        takeReport(this.#journal, entry, message);
        this.#outboxes.get(execution)?.push();
        break;
      }
      case 'guest':
        this.#status = statusOf(message.value);
        this.#turns?.send({ $case: 'guest', value: this.#status });
        break;
      case 'synced': {
        const { version, error } = message.value;
        this.#syncing = undefined;
        this.#status = error === '' ? synced(this.#status, version) : unsynced(this.#status);
        this.#turns?.send(message);
        break;
      }
      case 'want':
        this.#guestWants.asked(message.value.sha256);
        if (this.#turns === undefined) this.#tellGuest(this.#guestWants.fail('the owner is away'));
        else this.#turns.send(message);
        break;
      // A guest has no business with these.
      case 'hello':
      case 'lost':
      case 'token':
        break;
    }
    this.#guestSeq = seq;
  }

  async contentFromGuest(link: GuestLink, content: Content): Promise<void> {
    if (this.#guest !== link) return;
    this.#turnsWants.answered(content);
    await this.#turns?.content(content);
  }

  async contentFromTurns(content: Content): Promise<void> {
    this.#guestWants.answered(content);
    await this.#guest?.content(content);
  }

  /** Tells it what we wait for, and from where. The rest it forgets. */
  #welcomeGuest(known: ReadonlySet<string>): void {
    const resume = [...this.#journal.entries.values()]
      .filter(({ dispatch }) => known.has(dispatch.execution))
      .map(({ dispatch, output, credit }) => ({
        execution: dispatch.execution,
        outputOffset: BigInt(output.bytes),
        outputCredit: credit,
      }));
    void this.#down({ $case: 'welcome', value: { protocol: 1, attach: '', ...this.#journal.owner, resume } });
  }

  #unknownToGuest(entry: Entry): void {
    const { execution } = entry.dispatch;
    const same = entry.work === undefined || entry.work === this.#status.work;
    if (entry.lost !== undefined || isOffered(entry)) return;
    if (entry.finished !== undefined) {
      // How it ended is known; what it changed is not, and will not be.
      const skipped = [{ path: '/', reason: 'the work container ended before it said what the command had changed' }];
      const page = { execution, baseVersion: entry.dispatch.baseVersion, changes: [], skipped, last: true, files: 0 };
      this.#journal.offerAgain(entry);
      this.#journal.offered(entry, page);
    } else if (same) {
      // Never handed over, or on its way when the connection broke.
      void this.#hand(entry);
      return;
    } else this.#journal.lost(entry, 'the work container ended');
    this.#outboxes.get(execution)?.push();
  }

  #hand(entry: Entry): Promise<void> | undefined {
    if (this.#guest === undefined) return undefined;
    if (entry.work !== this.#status.work) this.#journal.taken(entry, this.#status.work);
    const sent = this.#down({ $case: 'dispatch', value: { ...entry.dispatch, outputCredit: entry.credit } });
    return entry.cancelled ? this.#down({ $case: 'cancel', value: { execution: entry.dispatch.execution } }) : sent;
  }

  #failSync(error: string): void {
    const value = { version: this.#syncing ?? 0n, error, written: 0, deleted: 0 };
    this.#syncing = undefined;
    this.#turns?.send({ $case: 'synced', value });
  }

  #tellTurns(contents: readonly Content[]): void {
    for (const content of contents) void this.#turns?.content(content);
  }

  #tellGuest(contents: readonly Content[]): void {
    for (const content of contents) void this.#guest?.content(content);
  }

  #down(message: Down): Promise<void> | undefined {
    return this.#guest?.control({ $case: 'down', value: { seq: 0n, ack: this.#guestSeq, message } });
  }
}
