/** Bytes that requests hold at once, in order of asking: memory is bounded by this, not by how many ask. */
import { TransientError } from '../errors.ts';

export type Budget = Readonly<{
  /** Waits for room. @returns what gives it back, once. @throws TransientError TooManyRequests after `waitMs` */
  take(bytes: number, signal: AbortSignal): Promise<() => void>;
}>;

export function createBudget(options: Readonly<{ bytes: number; waitMs: number }>): Budget {
  let left = options.bytes;
  const waiting: { bytes: number; admit: () => void }[] = [];
  const admit = () => {
    for (let first = waiting[0]; first !== undefined && first.bytes <= left; first = waiting[0]) {
      waiting.shift();
      left -= first.bytes;
      first.admit();
    }
  };
  return {
    take: async (asked, signal) => {
      // What is larger than all of it has it alone.
      const bytes = Math.min(asked, options.bytes);
      signal.throwIfAborted();
      const admitted = Promise.withResolvers<void>();
      const place = { bytes, admit: admitted.resolve };
      const leave = (reason: unknown) => {
        const at = waiting.indexOf(place);
        if (at === -1) return;
        waiting.splice(at, 1);
        admitted.reject(reason);
        // It may have held up others that fit.
        admit();
      };
      const gone = () => leave(signal.reason);
      const timer = setTimeout(
        () =>
          leave(
            new TransientError('TooManyRequests', `too many large requests at once (${options.bytes} bytes are held)`),
          ),
        options.waitMs,
      );
      signal.addEventListener('abort', gone, { once: true });
      waiting.push(place);
      admit();
      try {
        await admitted.promise;
      } finally {
        clearTimeout(timer);
        signal.removeEventListener('abort', gone);
      }
      let isHeld = true;
      return () => {
        if (!isHeld) return;
        isHeld = false;
        left += bytes;
        admit();
      };
    },
  };
}
