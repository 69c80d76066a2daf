/**
 * Between guest and turn controller: passes messages on, writes down what must survive, obeys the highest owner only.
 * Knows nothing of sockets; both links may come and go at any time.
 */
import {
  ExecutionPhase,
  type AttachRequest,
  type AttachResponse,
  type Content,
  type ExecutionState,
  type GuestHello,
  type GuestStatus,
  type Hello,
  type Welcome,
} from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { Frame } from '../frames.ts';
import type { Entry, Journal } from './journal.ts';

export type Up = NonNullable<AttachRequest['message']>;
export type Down = NonNullable<AttachResponse['message']>;
export type GuestLink = Readonly<{ send(frame: Frame): void; content(content: Content): Promise<void> }>;
export type TurnsLink = Readonly<{ send(message: Up): void; content(content: Content): Promise<void> }>;

const VERSION = '1';

export class Broker {
  readonly #journal: Journal;
  readonly #sandbox: string;
  #guest: GuestLink | undefined;
  #turns: TurnsLink | undefined;
  #status: GuestStatus = { connected: false, work: '', syncedVersion: 0n, facts: {} };
  #owner = { incarnation: 0n, epoch: 0n };

  constructor(sandbox: string, journal: Journal) {
    this.#sandbox = sandbox;
    this.#journal = journal;
  }

  hello(): Hello {
    const inventory = [...this.#journal.entries.values()].map(stateOf);
    return {
      protocolMin: 1,
      protocolMax: 1,
      sandbox: this.#sandbox,
      boot: this.#journal.boot,
      brokerVersion: VERSION,
      inventory,
      guest: this.#status,
      ...this.#owner,
    };
  }

  /** False: an owner below the one that was obeyed before; it is not attached to. */
  attachTurns(link: TurnsLink, welcome: Welcome): boolean {
    const { incarnation, epoch } = welcome;
    const below =
      incarnation < this.#owner.incarnation || (incarnation === this.#owner.incarnation && epoch < this.#owner.epoch);
    if (below) return false;
    this.#owner = { incarnation, epoch };
    this.#turns = link;
    // The guest may have connected between our hello and this.
    link.send({ $case: 'guest', value: this.#status });
    const wanted = new Map(welcome.resume.map((resume) => [resume.execution, resume]));
    for (const [id, entry] of this.#journal.entries) {
      const resume = wanted.get(id);
      if (resume === undefined) {
        // Nobody waits for it any more.
        this.#down({ $case: 'cancel', value: { execution: id } });
        this.#down({
          $case: 'settle',
          value: { execution: id, version: this.#status.syncedVersion, putBack: [], last: true },
        });
        this.#journal.settled(id);
        continue;
      }
      for (const output of this.#journal.outputFrom(entry, resume.outputOffset))
        link.send({ $case: 'output', value: output });
      this.#down({ $case: 'credit', value: { execution: id, outputCredit: resume.outputCredit } });
      this.#report(entry);
    }
    return true;
  }

  detachTurns(link: TurnsLink): void {
    if (this.#turns === link) this.#turns = undefined;
  }

  fromTurns(message: Down): void {
    if (message.$case === 'dispatch') {
      if (this.#journal.entries.has(message.value.execution)) return;
      const guest = this.#guest;
      this.#journal.dispatched(message.value, guest === undefined ? undefined : this.#status.work);
      if (guest !== undefined) this.#down(message);
      return;
    }
    if (message.$case === 'settle' && message.value.last) {
      this.#down(message);
      this.#journal.settled(message.value.execution);
      return;
    }
    this.#down(message);
  }

  attachGuest(link: GuestLink, hello: GuestHello): void {
    this.#guest = link;
    this.#status = hello.status ?? this.#status;
    const known = new Set(hello.inventory.map((state) => state.execution));
    const resume = [...this.#journal.entries.values()]
      .filter((entry) => known.has(entry.dispatch.execution))
      .map((entry) => ({ execution: entry.dispatch.execution, outputOffset: entry.outputBytes, outputCredit: 0n }));
    this.#down({ $case: 'welcome', value: { protocol: 1, attach: '', ...this.#owner, resume } });
    for (const entry of this.#journal.entries.values()) {
      if (known.has(entry.dispatch.execution) || entry.finished !== undefined || entry.lost !== undefined) continue;
      // Never handed over, or on its way when the connection broke: the same guest can still have it.
      if (entry.work === undefined || entry.work === this.#status.work) this.#hand(entry);
      else {
        this.#journal.lost(entry, 'the work container ended');
        this.#report(entry);
      }
    }
    this.#turns?.send({ $case: 'guest', value: this.#status });
  }

  detachGuest(link: GuestLink): void {
    if (this.#guest !== link) return;
    this.#guest = undefined;
    this.#status = { ...this.#status, connected: false };
    this.#turns?.send({ $case: 'guest', value: this.#status });
  }

  fromGuest(message: Up): void {
    switch (message.$case) {
      case 'output': {
        const entry = this.#journal.entries.get(message.value.execution);
        if (entry !== undefined && this.#journal.output(entry, message.value)) this.#turns?.send(message);
        return;
      }
      case 'finished': {
        const entry = this.#journal.entries.get(message.value.execution);
        if (entry === undefined || entry.finished !== undefined) return;
        this.#journal.finished(entry, message.value);
        this.#turns?.send(message);
        return;
      }
      case 'offer': {
        const entry = this.#journal.entries.get(message.value.execution);
        if (entry !== undefined) this.#journal.offered(message.value);
        this.#turns?.send(message);
        return;
      }
      case 'guest':
        this.#status = message.value;
        this.#turns?.send(message);
        return;
      case 'synced':
        if (message.value.error === '') this.#status = { ...this.#status, syncedVersion: message.value.version };
        this.#turns?.send(message);
        return;
      case 'want':
        this.#turns?.send(message);
        return;
      // A guest has no business with these.
      case 'hello':
      case 'lost':
      case 'token':
        return;
    }
  }

  async contentFromGuest(content: Content): Promise<void> {
    await this.#turns?.content(content);
  }

  async contentFromTurns(content: Content): Promise<void> {
    await this.#guest?.content(content);
  }

  #hand(entry: Entry): void {
    if (this.#guest === undefined) return;
    this.#journal.taken(entry, this.#status.work);
    this.#down({ $case: 'dispatch', value: entry.dispatch });
  }

  #report(entry: Entry): void {
    if (entry.finished !== undefined) this.#turns?.send({ $case: 'finished', value: entry.finished });
    for (const offer of entry.offers) this.#turns?.send({ $case: 'offer', value: offer });
    if (entry.lost !== undefined)
      this.#turns?.send({ $case: 'lost', value: { execution: entry.dispatch.execution, reason: entry.lost } });
  }

  #down(message: Down): void {
    this.#guest?.send({ $case: 'down', value: { seq: 0n, ack: 0n, message } });
  }
}

function stateOf(entry: Entry): ExecutionState {
  const phase =
    entry.lost !== undefined
      ? ExecutionPhase.EXECUTION_PHASE_LOST
      : entry.finished === undefined
        ? ExecutionPhase.EXECUTION_PHASE_RUNNING
        : ExecutionPhase.EXECUTION_PHASE_FINISHED;
  return { execution: entry.dispatch.execution, phase, outputBytes: entry.outputBytes };
}
