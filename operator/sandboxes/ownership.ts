/** Which workspaces this replica owns, for how long it may believe so, and one command at a time in each. */
import type { Logger } from '../telemetry/log.ts';
import { TTL_MS } from '../store/ownership.ts';
import type { Lease, WorkspaceRow } from '../store/rows.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';

export type OwnedWorkspace = {
  /** As of the last claim or acquire. */
  workspace: WorkspaceRow;
  readonly lease: Lease;
  /** Aborts when the workspace is not ours any more. */
  readonly signal: AbortSignal;
  /** The head; nobody else moves it while we own it. */
  readonly head: bigint;
  /** A commit was made: in whatever order commits are heard of, the head only grows. */
  moved(head: bigint): void;
  /** The sandbox is being told of the last commit; the next command waits for it. */
  settling: Promise<void>;
  /** Runs alone in this workspace. */
  exclusive<T>(work: () => Promise<T>): Promise<T>;
  /** Runs alone among writes that are no commands; a command may run meanwhile. */
  oneWrite<T>(work: () => Promise<T>): Promise<T>;
};
export type OwnershipOptions = Readonly<{
  store: WorkspaceStore;
  replica: string;
  address: string;
  log: Logger;
  /** Milliseconds, monotonic. */
  now?: () => number;
  heartbeatMs?: number;
  /** A workspace that nobody used for this long is given back. */
  idleMs?: number;
}>;

/** An owner stops itself this long after it sent the last good heartbeat: before anybody may take over. */
const SELF_STOP_MS = TTL_MS - 2_000;

type Held = { owned: OwnedWorkspace; abort: AbortController; uses: number; usedAt: number };

export class Ownership {
  readonly replica: string;
  readonly #options: OwnershipOptions;
  readonly #held = new Map<string, Held>();
  readonly #releasing = new Map<string, Promise<void>>();
  readonly #now: () => number;
  #goodAt = Number.NEGATIVE_INFINITY;

  constructor(options: OwnershipOptions) {
    this.#options = options;
    this.replica = options.replica;
    this.#now = options.now ?? (() => performance.now());
  }

  /** Heartbeats until the signal aborts, then gives everything back. Call once; `ready` resolves with the first good one. */
  async run(ready: () => void, signal: AbortSignal): Promise<void> {
    const { store, replica, address, log } = this.#options;
    const everyMs = this.#options.heartbeatMs ?? 2_000;
    // On its own, because a heartbeat may hang: a connection that swallows everything fails after minutes.
    const watchdog = setInterval(
      () => {
        if (this.#now() - this.#goodAt > SELF_STOP_MS) this.#dropAll('no heartbeat reached the store');
      },
      Math.min(everyMs, 250),
    );
    const beat = async (sentAt: number) => {
      try {
        await store.heartbeat({ replica, address });
        if (this.#goodAt === Number.NEGATIVE_INFINITY) ready();
        this.#goodAt = Math.max(this.#goodAt, sentAt);
      } catch (err) {
        log.warn('heartbeat failed', { replica, err });
      }
    };
    while (!signal.aborted) {
      const sentAt = this.#now();
      await settledOrAborted(beat(sentAt), signal);
      this.#releaseIdle();
      await pause(Math.max(0, everyMs - (this.#now() - sentAt)), signal);
    }
    clearInterval(watchdog);
    this.#dropAll('this replica stops');
    await store.releaseAll(replica).catch((err: unknown) => log.warn('leases were not released', { replica, err }));
  }

  get(workspace: string): OwnedWorkspace | undefined {
    return this.#held.get(workspace)?.owned;
  }

  get count(): number {
    return this.#held.size;
  }

  /** Owned, by us; or the address of the replica that owns it. */
  async acquire(workspace: WorkspaceRow, signal?: AbortSignal): Promise<OwnedWorkspace | { redirect: string }> {
    const held = this.#held.get(workspace.id);
    if (held !== undefined) {
      held.owned.workspace = workspace;
      return held.owned;
    }
    // Else the lease that is on its way back would be taken for ours again.
    await this.#releasing.get(workspace.id);
    const got = await this.#options.store.acquire(workspace.id, this.replica, signal);
    if ('owner' in got) return { redirect: got.owner.address };
    return await this.hold(workspace, got.lease, signal);
  }

  /** A lease that came with a claim. Held as long as the replica's heart beats, and somebody uses it now and then. */
  async hold(workspace: WorkspaceRow, lease: Lease, signal?: AbortSignal): Promise<OwnedWorkspace> {
    const held = this.#held.get(workspace.id);
    if (held !== undefined && held.owned.lease.epoch === lease.epoch) {
      held.owned.workspace = workspace;
      return held.owned;
    }
    if (held !== undefined) this.#drop(workspace.id, 'it was acquired anew');
    // Read under the lease: from here on only we move it.
    const { head } = await this.#options.store.head(workspace.id, signal);
    // A turn is claimed while its broker attaches: whoever was first here made the one owner, with the one queue.
    const meanwhile = this.#held.get(workspace.id);
    if (meanwhile !== undefined) {
      if (meanwhile.owned.lease.epoch >= lease.epoch) return meanwhile.owned;
      this.#drop(workspace.id, 'it was acquired anew');
    }
    const abort = new AbortController();
    let highest = head;
    const owned: OwnedWorkspace = {
      workspace,
      lease,
      signal: abort.signal,
      get head() {
        return highest;
      },
      moved: (to) => {
        if (to > highest) highest = to;
      },
      settling: Promise.resolve(),
      exclusive: oneByOne(),
      oneWrite: oneByOne(),
    };
    this.#held.set(workspace.id, { owned, abort, uses: 0, usedAt: this.#now() });
    return owned;
  }

  /** While `work` runs, the workspace is not given back for idleness. */
  async using<T>(owned: OwnedWorkspace, work: () => Promise<T>): Promise<T> {
    const held = this.#held.get(owned.workspace.id);
    if (held !== undefined) held.uses += 1;
    try {
      return await work();
    } finally {
      if (held !== undefined) {
        held.uses -= 1;
        held.usedAt = this.#now();
      }
    }
  }

  /** The store said that it is not ours: whatever runs in it stops here. */
  lost(owned: OwnedWorkspace): void {
    if (this.#held.get(owned.workspace.id)?.owned === owned)
      this.#drop(owned.workspace.id, 'the store says it is not ours');
  }

  /** Not waited for: heartbeats go on meanwhile. */
  #releaseIdle(): void {
    const { store, log, idleMs = 30_000 } = this.#options;
    for (const [id, held] of this.#held) {
      if (held.uses > 0 || this.#now() - held.usedAt < idleMs) continue;
      this.#drop(id, 'idle');
      const released = store
        .release(held.owned.lease)
        .catch((err: unknown) => log.warn('a lease was not released', { workspace: id, err }))
        .finally(() => this.#releasing.delete(id));
      this.#releasing.set(id, released);
    }
  }

  #dropAll(why: string): void {
    for (const id of this.#held.keys()) this.#drop(id, why);
  }

  #drop(id: string, why: string): void {
    const held = this.#held.get(id);
    if (held === undefined) return;
    this.#held.delete(id);
    held.abort.abort(new Error(`workspace ${id} is given up: ${why}`));
  }
}

/** One after the other, in the order asked; one that fails does not hold up the next. */
function oneByOne(): <T>(work: () => Promise<T>) => Promise<T> {
  let tail: Promise<unknown> = Promise.resolve();
  return (work) => {
    const mine = tail.then(work, work);
    tail = mine.catch(() => undefined);
    return mine;
  };
}

/** A heartbeat that hangs must not hold up a clean stop. `work` never rejects. */
async function settledOrAborted(work: Promise<void>, signal: AbortSignal): Promise<void> {
  const over = new AbortController();
  await Promise.race([work, pause(2 ** 31 - 1, AbortSignal.any([signal, over.signal]))]);
  over.abort();
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    function done() {
      clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve();
    }
    signal.addEventListener('abort', done, { once: true });
  });
}
