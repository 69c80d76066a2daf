/** The executions that this guest was given and that the owner has not settled. */
import type { Dispatch, Finished } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { Running } from './command.ts';
import type { Offering } from './offer.ts';

export type Task = {
  readonly dispatch: Dispatch;
  /** Asked for, maybe before it started. */
  cancelled: boolean;
  /** Nobody waits for it any more. */
  forgotten: boolean;
  /** Undefined until it starts. */
  running: Running | undefined;
  finished: Finished | undefined;
  offering: Offering | undefined;
};

export class Tasks {
  readonly #tasks = new Map<string, Task>();
  /** Output on its way, in order, by the number of the message that it went in. */
  #sent: { seq: bigint; task: Task; end: bigint }[] = [];

  /** Undefined when it is here already. */
  add(dispatch: Dispatch): Task | undefined {
    if (this.#tasks.has(dispatch.execution)) return undefined;
    const task: Task = {
      dispatch,
      cancelled: false,
      forgotten: false,
      running: undefined,
      finished: undefined,
      offering: undefined,
    };
    this.#tasks.set(dispatch.execution, task);
    return task;
  }

  get(execution: string): Task | undefined {
    return this.#tasks.get(execution);
  }

  all(): readonly Task[] {
    return [...this.#tasks.values()];
  }

  remove(task: Task): void {
    this.#tasks.delete(task.dispatch.execution);
    this.#sent = this.#sent.filter((one) => one.task !== task);
  }

  sent(task: Task, seq: bigint, end: bigint): void {
    this.#sent.push({ seq, task, end });
  }

  /** The peer has this message and all before it. */
  arrived(ack: bigint): void {
    const first = this.#sent.findIndex(({ seq }) => seq > ack);
    const gone = this.#sent.splice(0, first === -1 ? this.#sent.length : first);
    const last = gone.at(-1);
    last?.task.running?.output.arrived(last.end);
  }

  /** With a new connection the numbers start over. */
  numbersStartOver(): void {
    this.#sent = [];
  }

  /** Where a content was seen that is wanted now. */
  pathOf(sha256: string): string | undefined {
    for (const { offering } of this.#tasks.values()) {
      const path = offering?.paths.get(sha256);
      if (path !== undefined) return path;
    }
    return undefined;
  }
}
