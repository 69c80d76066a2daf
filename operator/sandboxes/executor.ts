/**
 * The way of one command (ARCHITECTURE 2): dispatched is committed before anything is sent; what comes back is checked,
 * committed in one transaction with the result, and only then is the sandbox told. After a crash the same code goes on.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { DEFAULTS } from '../../crds/defaults.ts';
import { parseQuantity } from '../../crds/quantity.ts';
import { OutputStream, type Finished } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { PermanentError, TransientError } from '../errors.ts';
import { headTail } from '../files/head-tail.ts';
import { FenceLost } from '../store/database.ts';
import type { ExecutionRow } from '../store/rows.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { Logger } from '../telemetry/log.ts';
import { collect, putBack, undoneBy, type Collected } from './collect.ts';
import { outcomeSchema, unknownOutcome, type Outcome } from './outcome.ts';
import type { OwnedWorkspace, Ownership } from './ownership.ts';
import type { SandboxProvider } from './provider.ts';
import type { Meeting } from './meeting.ts';
import { WINDOW_BYTES, type News, type Session } from './session.ts';
import { readySession } from './ready-session.ts';
import { whyLost } from './why-lost.ts';

export type ExecRequest = Readonly<{
  id: string;
  command: string;
  timeoutMs: number;
  stdin?: Buffer;
  turn?: string;
  session?: string;
  toolUseId?: string;
  actor?: string;
  idempotencyKey?: string;
}>;
export type OutputChunk = Readonly<{ stderr: boolean; offset: bigint; data: Buffer }>;
export type OnOutput = (chunk: OutputChunk) => void;
export type Executor = Readonly<{
  /** To its committed end. Aborting `signal` cancels the command and still waits for how it ended. @throws FenceLost */
  run(
    owned: OwnedWorkspace,
    request: ExecRequest,
    onOutput: OnOutput,
    signal: AbortSignal,
  ): Promise<Outcome & { execution: string }>;
  /** The same for one that was dispatched before, by us or by an owner that is gone. */
  adopt(
    owned: OwnedWorkspace,
    execution: string,
    onOutput: OnOutput,
    signal: AbortSignal,
  ): Promise<Outcome & { execution: string }>;
}>;
export type ExecutorDeps = Readonly<{
  store: WorkspaceStore;
  ownership: Ownership;
  provider: SandboxProvider;
  meeting: (workspace: string) => Meeting;
  log: Logger;
  /** From the end of a command's time to what became of it, the comparing of its tree included. */
  reportMs?: number;
  /** The workspace's log has grown. */
  onEvents?: (workspace: string) => void;
}>;

const GRACE_MS = 5_000;
/** How long a broker that was attached may stay away before its pod is asked for anew. */
const REATTACH_MS = 3_000;
/** Comparing a tree that is as large as may be takes a minute or two; its sandbox may be away for a while meanwhile. */
const REPORT_MS = 600_000;
/** setTimeout takes no more. */
const MAX_TIMER_MS = 0x7fffffff;

export function createExecutor(deps: ExecutorDeps): Executor {
  const { store, ownership, log } = deps;
  const guarded = async <T>(owned: OwnedWorkspace, work: () => Promise<T>): Promise<T> => {
    try {
      return await ownership.using(owned, () => owned.exclusive(work));
    } catch (error) {
      if (error instanceof FenceLost) ownership.lost(owned);
      throw error;
    }
  };

  return {
    run: (owned, request, onOutput, signal) =>
      guarded(owned, async () => {
        const meeting = deps.meeting(owned.workspace.id);
        const session = await readySession(deps, owned, meeting, AbortSignal.any([signal, owned.signal]));
        const row = {
          id: request.id,
          command: request.command,
          timeoutMs: request.timeoutMs,
          sandbox: session.sandbox,
          boot: session.boot,
          ...pick(request, ['turn', 'session', 'toolUseId', 'actor', 'idempotencyKey']),
        };
        const event = {
          ...about(request, request.id),
          type: 'execution.dispatched',
          v: 1,
          payload: {
            command: request.command,
            timeoutMs: request.timeoutMs,
            sandbox: session.sandbox,
            boot: session.boot,
            ...pick(request, ['toolUseId']),
          },
        };
        // From here on what the sandbox says of it is kept, so nothing can come too early.
        meeting.watch(request.id);
        const { existing } = await store.dispatch(owned.lease, row, [event]).catch((error: unknown) => {
          meeting.unwatch(request.id);
          throw error;
        });
        if (existing !== undefined) {
          if (existing !== request.id) meeting.unwatch(request.id);
          return await known(owned, existing, onOutput, signal);
        }
        deps.onEvents?.(owned.workspace.id);
        send(
          session,
          owned,
          { id: request.id, command: request.command, timeout_ms: request.timeoutMs },
          request.stdin,
        );
        return await follow(owned, { ...row, stdin: request.stdin }, session, onOutput, signal);
      }),
    adopt: (owned, execution, onOutput, signal) => guarded(owned, () => known(owned, execution, onOutput, signal)),
  };

  async function known(
    owned: OwnedWorkspace,
    id: string,
    onOutput: OnOutput,
    signal: AbortSignal,
  ): Promise<Outcome & { execution: string }> {
    const row = await store.getExecution(id);
    if (row === undefined) throw new Error(`execution ${id} is not there`);
    if (row.state !== 'dispatched') {
      const versions = { fromVersion: Number(row.base_version), toVersion: Number(row.version ?? row.base_version) };
      return { ...outcomeSchema.parse(row.result), ...versions, execution: id };
    }
    const meeting = deps.meeting(owned.workspace.id);
    const fresh = !meeting.isWatched(id);
    const inbox = meeting.watch(id);
    if (fresh && meeting.session !== undefined) {
      // It attached before anybody watched: what it has of this, it sends once it is asked by name.
      const { session } = meeting;
      inbox.push({
        $case: 'attached',
        session,
        knows: session.hello.inventory.some((s) => s.execution === id),
        boot: session.boot,
      });
    }
    await deps.provider.ensure(owned.workspace, AbortSignal.any([signal, owned.signal]));
    return await follow(owned, { ...rowOf(row), stdin: undefined }, undefined, onOutput, signal);
  }

  /** Takes the news of one execution until it can be committed. */
  async function follow(
    owned: OwnedWorkspace,
    x: Dispatched,
    first: Session | undefined,
    onOutput: OnOutput,
    signal: AbortSignal,
  ): Promise<Outcome & { execution: string }> {
    const meeting = deps.meeting(owned.workspace.id);
    const inbox = meeting.watch(x.id);
    const output: Buffer[] = [];
    let received = 0n;
    let granted = BigInt(WINDOW_BYTES);
    let finished: Finished | undefined;
    const offers: Extract<News, { $case: 'offer' }>['value'][] = [];
    let session = first;
    const cancel = () => (session ?? meeting.session)?.send({ $case: 'cancel', value: { execution: x.id } });
    signal.addEventListener('abort', cancel, { once: true });
    if (signal.aborted) cancel();
    const summary = () => {
      const all = Buffer.concat(output);
      return { ...headTail(all, DEFAULTS.output.modelBytes), outputBytes: all.length };
    };
    const watchdog = ensureWhileAway(owned, meeting);
    const late = new AbortController();
    const deadline = setTimeout(
      () => late.abort(),
      Math.min(MAX_TIMER_MS, x.timeoutMs + GRACE_MS + (deps.reportMs ?? REPORT_MS)),
    );
    const until = AbortSignal.any([owned.signal, late.signal]);
    try {
      for (;;) {
        const news = await inbox.next(until).catch((error: unknown) => {
          if (owned.signal.aborted || !late.signal.aborted) throw error;
          return undefined;
        });
        if (news === undefined) {
          const silent = session ?? meeting.session;
          const given = await giveUp(
            'SandboxLost',
            'its sandbox did not report how it ended; what it did in the workspace is not kept',
            silent,
          );
          silent?.restart('an execution was not reported');
          return given;
        }
        switch (news.$case) {
          case 'output': {
            output.push(news.value.data);
            onOutput({
              stderr: news.value.stream === OutputStream.OUTPUT_STREAM_STDERR,
              offset: news.value.offset,
              data: news.value.data,
            });
            received = news.value.offset + BigInt(news.value.data.length);
            if (granted - received < BigInt(WINDOW_BYTES) / 2n) {
              granted = received + BigInt(WINDOW_BYTES);
              (session ?? meeting.session)?.send({
                $case: 'credit',
                value: { execution: x.id, outputCredit: granted },
              });
            }
            break;
          }
          case 'attached':
            session = news.session;
            if (news.knows) {
              if (signal.aborted) cancel();
            } else if (news.boot === x.boot)
              send(session, owned, { id: x.id, command: x.command, timeout_ms: x.timeoutMs }, x.stdin);
            else
              return await giveUp(
                'SandboxLost',
                'its sandbox was replaced while it ran; what it did in the workspace is not kept',
                session,
              );
            break;
          case 'lost': {
            const [reason, message] = await whyLost(store, session ?? meeting.session, news.value.reason);
            return await giveUp(reason, message, session ?? meeting.session);
          }
          case 'finished':
            finished ??= news.value;
            break;
          case 'offer':
            if (offers.at(-1)?.last === true) offers.length = 0;
            offers.push(news.value);
            break;
        }
        if (finished !== undefined && offers.at(-1)?.last === true) {
          const collected = await take(finished, (session ?? meeting.session) as Session | undefined);
          if (collected !== undefined) return collected;
        }
      }
    } finally {
      clearTimeout(deadline);
      watchdog[Symbol.dispose]();
      signal.removeEventListener('abort', cancel);
      meeting.unwatch(x.id);
    }

    /** Undefined: the sandbox went away in the middle; it attaches again and offers again. */
    async function take(
      end: Finished,
      from: Session | undefined,
    ): Promise<(Outcome & { execution: string }) | undefined> {
      let collected: Collected;
      try {
        collected = await collect({ store, owned, meeting, execution: x.id, offers }, owned.signal);
      } catch (error) {
        if (!(error instanceof TransientError) || error.reason !== 'SandboxLost') throw error;
        offers.length = 0;
        return undefined;
      }
      const all = Buffer.concat(output);
      const outcome: Outcome = {
        state: 'done',
        ...(end.exitCode === undefined ? {} : { exitCode: end.exitCode }),
        ...(end.signal === '' ? {} : { signal: end.signal }),
        timedOut: end.timedOut,
        cancelled: end.cancelled,
        outOfMemory: end.outOfMemory,
        ...headTail(all, DEFAULTS.output.modelBytes),
        outputBytes: all.length,
        droppedBytes: Number(end.droppedBytes),
        files: { ...collected.files, paths: [...collected.files.paths] },
        refused: [...collected.refused],
        runMs: end.runMs,
        collectMs: end.collectMs,
        ...(end.error === '' ? {} : { reason: 'SandboxLost', message: end.error }),
      };
      try {
        return await commit(outcome, collected, all, from);
      } catch (error) {
        if (!(error instanceof PermanentError) || error.reason !== 'QuotaExceeded') throw error;
        // The result counts, its files can't be kept: all of them are put back.
        const { message } = error;
        const undone = undoneBy('QuotaExceeded', message, collected);
        const files = { ...undone.files, paths: [...undone.files.paths] };
        return await commit({ ...outcome, files, refused: [...undone.refused] }, undone, all, from);
      }
    }

    async function giveUp(
      reason: string,
      message: string,
      from: Session | undefined,
    ): Promise<Outcome & { execution: string }> {
      log.warn('the outcome of an execution is unknown', { execution: x.id, workspace: owned.workspace.id, reason });
      return await commit(unknownOutcome(reason, message, summary()), undefined, Buffer.concat(output), from);
    }

    async function commit(
      outcome: Outcome,
      collected: Collected | undefined,
      all: Buffer,
      from: Session | undefined,
    ): Promise<Outcome & { execution: string }> {
      const [sha256] = all.length === 0 ? [] : await store.putBlobs(owned.workspace.tenant, [all]);
      const result = sha256 === undefined ? outcome : { ...outcome, outputSha256: sha256.toString('hex') };
      const changes = collected?.changes ?? [];
      const { head, conflicts } = await retried(owned, () =>
        store.commit(owned.lease, {
          execution: {
            id: x.id,
            sandbox: x.sandbox,
            boot: x.boot,
            state: outcome.state,
            result,
            ...(sha256 ? { outputSha256: sha256 } : {}),
          },
          changes,
          events: [{ ...about(x, x.id), type: 'execution.done', v: 1, payload: result }],
        }),
      );
      deps.onEvents?.(owned.workspace.id);
      // Somebody may have written while it ran.
      const fromVersion = changes.length > conflicts.length ? head - 1n : head;
      owned.moved(head);
      // The caller has its answer already; the sandbox is told while nobody waits.
      if (from !== undefined && !from.signal.aborted)
        owned.settling = settle(from, fromVersion, head, collected, conflicts);
      return {
        ...result,
        execution: x.id,
        fromVersion: Number(fromVersion),
        toVersion: Number(head),
        ...(conflicts.length > 0 ? { conflicts: [...conflicts] } : {}),
      };
    }

    /** A sandbox that could not be told is taken to be at no version: it is compared in full before its next command. */
    async function settle(
      to: Session,
      before: bigint,
      head: bigint,
      collected: Collected | undefined,
      conflicts: readonly string[],
    ): Promise<void> {
      try {
        const others =
          collected === undefined || collected.base === before
            ? []
            : await store.changesBetween(owned.workspace.id, collected.base, before);
        const wrong = [...new Set([...(collected?.putBack ?? []), ...conflicts, ...others.map(({ path }) => path)])];
        if (collected === undefined) to.setSynced(undefined);
        else if (to.synced() !== undefined) to.setSynced(head);
        for await (const page of putBack(store, owned, wrong)) {
          to.send({ $case: 'settle', value: { execution: x.id, version: head, putBack: page, last: false } });
          await to.drained();
        }
        to.send({ $case: 'settle', value: { execution: x.id, version: head, putBack: [], last: true } });
      } catch (err) {
        to.setSynced(undefined);
        log.warn('a sandbox was not told of a commit', { execution: x.id, err });
      }
    }
  }

  /** While nobody is attached, the pod is asked for: an operator that lost it makes a new one. */
  function ensureWhileAway(owned: OwnedWorkspace, meeting: Meeting): Disposable {
    const timer = setInterval(() => {
      if (meeting.session === undefined && !owned.signal.aborted) {
        deps.provider
          .ensure(owned.workspace, owned.signal)
          .catch((err: unknown) =>
            log.warn('a sandbox could not be asked for', { workspace: owned.workspace.id, err }),
          );
      }
    }, REATTACH_MS);
    return { [Symbol.dispose]: () => clearInterval(timer) };
  }

  function send(
    session: Session,
    owned: OwnedWorkspace,
    x: { id: string; command: string; timeout_ms: number },
    stdin?: Buffer,
  ): void {
    const { files } = owned.workspace.effective;
    const env = Object.fromEntries(
      (owned.workspace.spec.environment?.env ?? []).map(({ name, value }) => [name, value ?? '']),
    );
    session.send({
      $case: 'dispatch',
      value: {
        execution: x.id,
        command: x.command,
        env,
        timeoutMs: x.timeout_ms,
        graceMs: GRACE_MS,
        stdin: stdin ?? Buffer.alloc(0),
        baseVersion: session.synced() ?? owned.head,
        outputCredit: BigInt(WINDOW_BYTES),
        outputLimit: BigInt(DEFAULTS.output.storedBytes),
        collect: {
          ignored: [...files.ignored],
          maxEntries: files.maxFiles * 4 + 10_000,
          // What is larger is refused by its size, so nobody need read it.
          maxFileBytes: BigInt(Math.floor(parseQuantity(files.maxFileSize) ?? 0)),
        },
      },
    });
  }
}

type Dispatched = Readonly<{
  id: string;
  command: string;
  timeoutMs: number;
  sandbox: string;
  boot: string;
  turn?: string;
  session?: string;
  actor?: string;
  stdin: Buffer | undefined;
}>;

/** A store that is away for a while holds the result up, it never loses it: the broker has it until it is settled. */
async function retried<T>(owned: OwnedWorkspace, work: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof TransientError) || error instanceof FenceLost || owned.signal.aborted) throw error;
      await delay(500, undefined, { signal: owned.signal });
    }
  }
}

function about(x: Readonly<{ turn?: string; session?: string; actor?: string }>, execution: string) {
  return { execution, ...pick(x, ['turn', 'session', 'actor']) };
}

function rowOf(row: ExecutionRow) {
  return {
    id: row.id,
    command: row.command,
    timeoutMs: row.timeout_ms,
    sandbox: row.sandbox,
    boot: row.boot,
    ...(row.turn === null ? {} : { turn: row.turn }),
    ...(row.session === null ? {} : { session: row.session }),
    ...(row.actor === null ? {} : { actor: row.actor }),
  };
}

function pick<T extends object, K extends keyof T>(from: T, keys: readonly K[]): Pick<T, K> {
  return Object.fromEntries(keys.filter((key) => from[key] !== undefined).map((key) => [key, from[key]])) as Pick<T, K>;
}
