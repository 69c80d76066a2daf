/**
 * The guest's queue of one: what the broker sends in, what is answered. Knows nothing of sockets; the link to the broker
 * may break at any time, and what was not known to have arrived is sent again with the next one.
 */
import {
  ExecutionPhase,
  type AttachRequest,
  type Content,
  type GuestStatus,
  type Settle,
  type Want,
  type Welcome,
} from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { Frame, WriteFrame } from '../frames.ts';
import { NEVER_RAN, startCommand, type CommandPlace, type Ended } from './command.ts';
import { Contents } from './contents.ts';
import { facts } from './facts.ts';
import { giveFile } from './give.ts';
import { nothingChanged, type Offering } from './offer.ts';
import { Tasks, type Task } from './tasks.ts';
import { Tree } from './tree.ts';

type Up = NonNullable<AttachRequest['message']>;
type Link = Readonly<{ control: WriteFrame; bulk: WriteFrame }> & { welcomed: boolean; seq: bigint };

/** Pages of a tree that wait for their turn before the connection is not read on. */
const MAX_PAGES = 4;

export class Guest {
  readonly #place: CommandPlace;
  readonly #work: string;
  readonly #facts = facts();
  readonly #contents: Contents;
  readonly #tree: Tree;
  readonly #tasks = new Tasks();
  #link: Link | undefined;
  /** Grows with each welcome: pages of a tree belong to one. */
  #generation = 0;
  #queue: Promise<void> = Promise.resolve();
  #giving: Promise<void> = Promise.resolve();
  #pages = 0;

  constructor(place: CommandPlace, work: string) {
    this.#place = place;
    this.#work = work;
    this.#contents = new Contents(
      (batch) =>
        void this.#up({
          $case: 'want',
          value: {
            execution: '',
            sha256: batch.map(({ sha256 }) => sha256),
            from: batch.map(({ from }) => BigInt(from)),
          },
        }),
    );
    this.#tree = new Tree(place.root, this.#contents);
  }

  /** Says hello; all else waits for the broker's welcome, which says what it has. */
  attach(control: WriteFrame, bulk: WriteFrame): void {
    this.#link = { control, bulk, welcomed: false, seq: 0n };
    this.#tasks.numbersStartOver();
    const inventory = [...this.#tasks.all()].map(({ dispatch, finished }) => ({
      execution: dispatch.execution,
      phase: finished ? ExecutionPhase.EXECUTION_PHASE_FINISHED : ExecutionPhase.EXECUTION_PHASE_RUNNING,
      outputBytes: 0n,
    }));
    void control({ $case: 'hello', value: { protocolMin: 1, protocolMax: 1, status: this.#status(), inventory } });
  }

  detach(): void {
    this.#link = undefined;
    this.#generation += 1;
    this.#tree.giveUp();
  }

  /** Resolves when more may come. */
  receive(frame: Frame): Promise<void> | undefined {
    if (frame.$case === 'content') return this.#contents.receive(frame.value);
    if (frame.$case !== 'down') return undefined;
    const { message, ack } = frame.value;
    this.#tasks.arrived(ack);
    switch (message?.$case) {
      case 'welcome':
        this.#welcome(message.value);
        return undefined;
      case 'credit':
        this.#tasks.get(message.value.execution)?.running?.output.grant(message.value.outputCredit);
        return undefined;
      case 'cancel':
        this.#cancel(this.#tasks.get(message.value.execution));
        return undefined;
      case 'want':
        this.#give(message.value);
        return undefined;
      case 'sync': {
        const page = message.value;
        return this.#page(async () => {
          const value = await this.#tree.sync(page);
          if (value !== undefined) await this.#up({ $case: 'synced', value });
        });
      }
      case 'settle': {
        const page = message.value;
        return this.#page(() => this.#settle(page));
      }
      case 'dispatch': {
        const task = this.#tasks.add(message.value);
        if (task !== undefined) this.#then(() => this.#run(task));
        return undefined;
      }
      case 'collect': {
        const { execution, collect } = message.value;
        this.#then(async () => {
          const offering = this.#tree.offer(execution, collect);
          const task = this.#tasks.get(execution);
          if (task !== undefined) task.offering = offering;
          await this.#sendOffering(offering);
        });
        return undefined;
      }
      case 'redirect':
      case undefined:
        return undefined;
    }
  }

  /** The broker's list is all that anybody waits for; whatever else was under way here is void, and so is the tree. */
  #welcome({ resume }: Welcome): void {
    const link = this.#link;
    if (link === undefined) return;
    link.welcomed = true;
    this.#generation += 1;
    this.#tree.giveUp();
    const wanted = new Map(resume.map((one) => [one.execution, one]));
    for (const task of this.#tasks.all()) {
      const one = wanted.get(task.dispatch.execution);
      if (one === undefined) {
        task.forgotten = true;
        this.#cancel(task);
        this.#then(async () => {
          this.#tasks.remove(task);
          this.#tree.forget();
        });
        continue;
      }
      task.running?.output.resend(one.outputOffset);
      task.running?.output.grant(one.outputCredit);
      void this.#report(task);
    }
    this.#then(() => this.#up({ $case: 'guest', value: this.#status() }));
  }

  #cancel(task: Task | undefined): void {
    if (task === undefined) return;
    task.cancelled = true;
    if (task.finished === undefined) task.running?.cancel();
  }

  async #run(task: Task): Promise<void> {
    if (task.forgotten) return;
    const { dispatch } = task;
    const ended = await this.#execute(task);
    const began = performance.now();
    task.offering =
      task.running === undefined
        ? { pages: [nothingChanged(dispatch.execution, dispatch.baseVersion)], paths: new Map(), index: undefined }
        : this.#tree.offer(dispatch.execution, dispatch.collect);
    const collectMs = Math.round(performance.now() - began);
    // Before the result: the owner must not take the tree for the version that comes of it.
    if (this.#tree.version === undefined) await this.#up({ $case: 'guest', value: this.#status() });
    task.finished = { ...ended, execution: dispatch.execution, collectMs, syncMs: 0 };
    await this.#report(task);
  }

  async #execute(task: Task): Promise<Ended> {
    const { dispatch } = task;
    if (task.cancelled) return { ...NEVER_RAN, cancelled: true };
    const { version } = this.#tree;
    if (version !== dispatch.baseVersion) {
      const error = `the command did not run: the tree is at version ${version ?? 'unknown'}, not at ${dispatch.baseVersion}`;
      return { ...NEVER_RAN, error };
    }
    this.#tree.commandStarts();
    task.running = startCommand(dispatch, this.#place, (value) => {
      const seq = this.#send({ $case: 'output', value });
      if (seq !== undefined) this.#tasks.sent(task, seq, value.offset + BigInt(value.data.length));
    });
    if (task.cancelled) task.running.cancel();
    return await task.running.finished;
  }

  async #report({ finished, offering, forgotten }: Task): Promise<void> {
    if (finished === undefined || offering === undefined || forgotten) return;
    await this.#up({ $case: 'finished', value: finished });
    await this.#sendOffering(offering);
  }

  async #sendOffering(offering: Offering): Promise<void> {
    const link = this.#link;
    for (const value of offering.pages) {
      // What is left of it comes with the next welcome.
      if (this.#link !== link) return;
      await this.#up({ $case: 'offer', value });
    }
  }

  async #settle(page: Settle): Promise<void> {
    await this.#tree.settle(page);
    if (!page.last) return;
    const task = this.#tasks.get(page.execution);
    if (task !== undefined) this.#tasks.remove(task);
    // What would not end goes with the container: init ends with us, and everything with init.
    if (task?.running?.escaped() === true) process.exit(1);
    if (this.#tree.version === undefined) await this.#up({ $case: 'guest', value: this.#status() });
  }

  #give({ sha256, from }: Want): void {
    for (const [i, hash] of sha256.entries()) {
      const wanted = Buffer.from(hash);
      this.#giving = this.#giving.then(() => {
        const link = this.#link;
        const path = this.#tasks.pathOf(wanted.toString('hex'));
        const send = (value: Content) => (link === this.#link ? link?.bulk({ $case: 'content', value }) : undefined);
        return giveFile(this.#place.root, { sha256: wanted, path, from: from[i] ?? 0n }, send);
      });
    }
  }

  /** Pages wait for those before them; a few of them hold their sender. */
  #page(work: () => Promise<void>): Promise<void> | undefined {
    const generation = this.#generation;
    this.#pages += 1;
    this.#then(async () => {
      this.#pages -= 1;
      if (generation === this.#generation) await work();
    });
    return this.#pages > MAX_PAGES ? this.#queue : undefined;
  }

  /** One thing at a time; what fails never stops what follows. */
  #then(work: () => Promise<void>): void {
    this.#queue = this.#queue.then(work).catch((error: unknown) => {
      this.#tree.forget();
      process.stderr.write(`guest: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
      void this.#up({ $case: 'guest', value: this.#status() });
    });
  }

  #status(): GuestStatus {
    const { version } = this.#tree;
    return {
      connected: true,
      work: this.#work,
      syncedVersion: version ?? 0n,
      facts: {
        ...this.#facts,
        synced: String(version !== undefined),
        ...(version === undefined ? { tree: this.#tree.isEmpty() ? 'empty' : 'unknown' } : {}),
      },
    };
  }

  async #up(message: Up): Promise<void> {
    const link = this.#link;
    if (link?.welcomed !== true) return;
    link.seq += 1n;
    await link.control({ $case: 'up', value: { seq: link.seq, ack: 0n, message } });
  }

  /** The same without waiting: what it sends is bounded by credit. @returns its number; undefined when nobody takes it */
  #send(message: Up): bigint | undefined {
    const link = this.#link;
    if (link?.welcomed !== true) return undefined;
    link.seq += 1n;
    void link.control({ $case: 'up', value: { seq: link.seq, ack: 0n, message } });
    return link.seq;
  }
}
