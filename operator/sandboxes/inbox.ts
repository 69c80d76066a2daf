/** A queue that one reader waits on. What goes in is bounded by whoever sends (byte credits, pages of a tree). */

export type Inbox<T> = Readonly<{
  push(item: T): void;
  /** The next item, in order. Rejects with the signal's reason. */
  next(signal: AbortSignal): Promise<T>;
}>;

export function createInbox<T>(): Inbox<T> {
  const items: T[] = [];
  let wake: (() => void) | undefined;
  return {
    push: (item) => {
      items.push(item);
      wake?.();
    },
    next: async (signal) => {
      for (;;) {
        signal.throwIfAborted();
        const item = items.shift();
        if (item !== undefined) return item;
        await new Promise<void>((resolve, reject) => {
          const aborted = () => {
            wake = undefined;
            reject(signal.reason as Error);
          };
          wake = () => {
            wake = undefined;
            signal.removeEventListener('abort', aborted);
            resolve();
          };
          signal.addEventListener('abort', aborted, { once: true });
        });
      }
    },
  };
}
