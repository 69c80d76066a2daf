/** A queue that one reader waits on. */

export type Inbox<T> = Readonly<{
  /** `bytes`: roughly what it holds in memory, for `room`. */
  push(item: T, bytes?: number): void;
  /** The next item, in order. Rejects with the signal's reason. */
  next(signal: AbortSignal): Promise<T>;
  /** Resolves when less than `bytes` wait to be read: how a sender is made to keep the reader's pace. */
  room(bytes: number, signal: AbortSignal): Promise<void>;
  /** What waits is dropped. */
  clear(): void;
}>;

export function createInbox<T>(): Inbox<T> {
  let items: { item: T; bytes: number }[] = [];
  let held = 0;
  const readers = new Set<() => void>();
  const senders = new Set<() => void>();
  const changed = (waiting: Set<() => void>) => {
    for (const wake of [...waiting]) wake();
  };
  return {
    push: (item, bytes = 0) => {
      items.push({ item, bytes });
      held += bytes;
      changed(readers);
    },
    next: async (signal) => {
      for (;;) {
        signal.throwIfAborted();
        const first = items.shift();
        if (first === undefined) await woken(readers, signal);
        else {
          held -= first.bytes;
          changed(senders);
          return first.item;
        }
      }
    },
    room: async (bytes, signal) => {
      for (;;) {
        if (held < bytes || signal.aborted) return;
        await woken(senders, signal);
      }
    },
    clear: () => {
      items = [];
      held = 0;
      changed(senders);
    },
  };
}

/** Until something changed, or the signal aborts. */
export function woken(waiting: Set<() => void>, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const wake = () => {
      waiting.delete(wake);
      signal.removeEventListener('abort', wake);
      resolve();
    };
    waiting.add(wake);
    signal.addEventListener('abort', wake, { once: true });
    if (signal.aborted) wake();
  });
}
