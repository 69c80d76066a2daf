/** What happens live in this process, for whoever follows: "the log has grown", and parts of what is being produced. */
import type { Delta } from '../../proto/gen/lathe/turns/v1/turns.ts';

export type Live = Readonly<{ kind: 'changed' } | { kind: 'delta'; delta: Delta; bytes: number }>;
export type Subscription = Disposable &
  Readonly<{ next(timeoutMs: number, signal: AbortSignal): Promise<Live | undefined>; overflowed(): boolean }>;
export type Hub = Readonly<{
  changed(workspace: string): void;
  delta(workspace: string, delta: Delta): void;
  /** A follower that is more than `maxBytes` behind is cut: it comes back with its cursor, never slowing what it follows. */
  subscribe(workspace: string, maxBytes: number): Subscription;
}>;

type Follower = { items: Live[]; bytes: number; maxBytes: number; overflowed: boolean; wake: (() => void) | undefined };

export function createHub(): Hub {
  const followers = new Map<string, Set<Follower>>();
  const publish = (workspace: string, live: Live) => {
    for (const f of followers.get(workspace) ?? []) {
      // Once is enough: whoever reads the log reads all of it.
      if (live.kind === 'changed' && f.items.at(-1)?.kind === 'changed') continue;
      f.bytes += live.kind === 'delta' ? live.bytes : 0;
      if (f.bytes > f.maxBytes) f.overflowed = true;
      else f.items.push(live);
      f.wake?.();
    }
  };
  return {
    changed: (workspace) => publish(workspace, { kind: 'changed' }),
    delta: (workspace, delta) => publish(workspace, { kind: 'delta', delta, bytes: Buffer.byteLength(delta.text) }),
    subscribe: (workspace, maxBytes) => {
      const follower: Follower = { items: [], bytes: 0, maxBytes, overflowed: false, wake: undefined };
      const of = followers.get(workspace) ?? new Set();
      followers.set(workspace, of.add(follower));
      return {
        overflowed: () => follower.overflowed,
        next: async (timeoutMs, signal) => {
          if (follower.items.length === 0 && !follower.overflowed && !signal.aborted) {
            await new Promise<void>((resolve) => {
              const timer = setTimeout(done, timeoutMs);
              function done() {
                clearTimeout(timer);
                signal.removeEventListener('abort', done);
                follower.wake = undefined;
                resolve();
              }
              follower.wake = done;
              signal.addEventListener('abort', done, { once: true });
            });
          }
          const item = follower.items.shift();
          if (item?.kind === 'delta') follower.bytes -= item.bytes;
          return item;
        },
        [Symbol.dispose]: () => {
          of.delete(follower);
          if (of.size === 0) followers.delete(workspace);
        },
      };
    },
  };
}
