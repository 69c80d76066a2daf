/** One attached sandbox: a stream of its broker, and the guest behind it. */
import type { AttachRequest, AttachResponse, Content, Hello } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { Inbox } from './inbox.ts';

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
  /** Resolves when what was sent has left this process, or the stream ended: await it between pages. */
  drained(): Promise<void>;
  sendContent(content: Content): Promise<void>;
  /** Ends the stream; the broker dials again and tells anew what it has. */
  restart(why: string): void;
  /** What the guest answers to a sync. */
  answers: Inbox<{ version: bigint; error: string }>;
  /** What the guest says of its tree; undefined: unknown, or no guest. */
  synced(): bigint | undefined;
  setSynced(version: bigint | undefined): void;
  /** The guest process; changes when the work container was replaced. */
  work(): string;
  guestConnected(): boolean;
  /** The guest has nothing there, so that it will need everything. */
  treeIsEmpty(): boolean;
  /** Since something came from it, or it took something. */
  silentForMs(): number;
  /** Aborts with SandboxLost when the guest that is there now goes away, at the latest with the stream. */
  guestSignal(): AbortSignal;
}>;
