/** Claims what may run and runs it, many at once: turns, and seeds before the first of them. */
import { setTimeout as delay } from 'node:timers/promises';
import { PermanentError, TransientError } from '../errors.ts';
import { runSeed } from '../files/seed.ts';
import type { SeedDeps } from '../files/seeds/source.ts';
import type { Ownership } from '../sandboxes/ownership.ts';
import { FenceLost } from '../store/database.ts';
import type { Claim, SeedClaim, WorkspaceStore } from '../store/workspace-store.ts';
import type { Logger } from '../telemetry/log.ts';
import { runTurn, type TurnDeps } from './turn.ts';

export type TurnLoopOptions = Readonly<{
  store: WorkspaceStore;
  ownership: Ownership;
  turn: TurnDeps;
  seed: SeedDeps;
  log: Logger;
  /** Turns at once. */
  concurrency: number;
  /** Seeds at once: each may be a clone, with its memory and its disk. */
  seedConcurrency?: number;
  /** Looked for at least this often, hints or not. */
  pollMs?: number;
}>;
export type TurnLoop = Readonly<{ wake(): void; run(signal: AbortSignal): Promise<void> }>;

const POLL_MS = 1_000;
const SEEDS_AT_ONCE = 2;
const MAX_RETRY_MS = 15_000;

/** `wake` is for hints that something may be there to claim, or was cancelled. `run` returns once all it ran has stopped. */
export function createTurnLoop(options: TurnLoopOptions): TurnLoop {
  const { store, ownership, log } = options;
  const running = new Map<string, { cancel: AbortController; done: Promise<void> }>();
  /** Workspaces whose seed is under way here. */
  const seeding = new Map<string, Promise<void>>();
  let hinted = false;
  let wakeUp: (() => void) | undefined;
  const wake = () => {
    hinted = true;
    wakeUp?.();
  };

  return {
    wake,
    run: async (signal) => {
      while (!signal.aborted) {
        hinted = false;
        try {
          while (
            seeding.size < (options.seedConcurrency ?? SEEDS_AT_ONCE) &&
            !signal.aborted &&
            (await claimSeed(signal))
          );
          while (running.size < options.concurrency && !signal.aborted && (await claimOne(signal)));
          await cancelRequested();
        } catch (err) {
          // The store is away: it is looked at again, nothing is reported meanwhile.
          log.warn('nothing could be claimed', { err });
          await delay(500, undefined, { signal }).catch(() => undefined);
        }
        if (!hinted) await nap(options.pollMs ?? POLL_MS, signal);
      }
      await Promise.allSettled([...seeding.values(), ...[...running.values()].map((r) => r.done)]);
    },
  };

  async function claimSeed(signal: AbortSignal): Promise<boolean> {
    const claim = await store.claimSeed(ownership.replica, [...seeding.keys()], signal);
    if (claim === undefined) return false;
    const { id } = claim.workspace;
    const done = seed(claim, signal)
      .catch((err: unknown) => log.warn('a seed is left to its next try', { workspace: id, err }))
      .finally(() => {
        seeding.delete(id);
        wake();
      });
    seeding.set(id, done);
    return true;
  }

  async function seed(claim: SeedClaim, signal: AbortSignal): Promise<void> {
    const owned = await ownership.hold(claim.workspace, claim.lease, signal);
    try {
      await ownership.using(owned, () =>
        runSeed(options.seed, claim, owned.moved, AbortSignal.any([owned.signal, signal])),
      );
    } catch (err) {
      if (err instanceof FenceLost) ownership.lost(owned);
      // The store is away, or the workspace is: not at once again.
      await delay(500, undefined, { signal }).catch(() => undefined);
      throw err;
    }
  }

  async function claimOne(signal: AbortSignal): Promise<boolean> {
    const claim = await store.claimTurn(ownership.replica, [...running.keys()], signal);
    if (claim === undefined) return false;
    const cancel = new AbortController();
    const done = runClaim(claim, cancel.signal, signal).finally(() => {
      running.delete(claim.turn.id);
      wake();
    });
    running.set(claim.turn.id, { cancel, done });
    return true;
  }

  /** To its end, or until it is not ours any more. What time may heal is tried again here, from the log. */
  async function runClaim(claim: Claim, cancel: AbortSignal, signal: AbortSignal): Promise<void> {
    const fields = { workspace: claim.workspace.id, turn: claim.turn.id };
    for (let attempt = 0; !signal.aborted; attempt += 1) {
      const owned = await ownership.hold(claim.workspace, claim.lease).catch(() => undefined);
      try {
        if (owned === undefined) throw new TransientError('StoreUnavailable', 'the workspace could not be read');
        await ownership.using(owned, () => runTurn(options.turn, owned, claim.turn, cancel));
        log.info('a turn ended', fields);
        return;
      } catch (err) {
        if (err instanceof FenceLost || owned?.signal.aborted === true || signal.aborted) {
          if (owned !== undefined && err instanceof FenceLost) ownership.lost(owned);
          log.warn('a turn is left to its next owner', { ...fields, err });
          return;
        }
        log.warn('a turn is tried again', {
          ...fields,
          err,
          reason: err instanceof TransientError || err instanceof PermanentError ? err.reason : 'Unknown',
        });
        await delay(Math.min(MAX_RETRY_MS, 250 * 2 ** Math.min(attempt, 8)), undefined, { signal }).catch(
          () => undefined,
        );
      }
    }
  }

  async function cancelRequested(): Promise<void> {
    for (const id of await store.cancelRequests([...running.keys()]))
      running.get(id)?.cancel.abort(new Error('the turn was cancelled'));
  }

  function nap(ms: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(done, ms);
      function done() {
        clearTimeout(timer);
        signal.removeEventListener('abort', done);
        wakeUp = undefined;
        resolve();
      }
      wakeUp = done;
      signal.addEventListener('abort', done, { once: true });
    });
  }
}
