/**
 * Runs one claimed turn: read the log, fold, next, do it, append what came of it, again. A new turn, one that was taken
 * over and one that is resumed all start here, in the same way.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { DEFAULTS } from '../../crds/defaults.ts';
import { parseDuration } from '../../crds/quantity.ts';
import type { ClassSpec } from '../../crds/types.ts';
import { PermanentError, TransientError } from '../errors.ts';
import { joined } from '../files/head-tail.ts';
import type { Model, Reply } from '../models/model.ts';
import type { Executor, OutputChunk } from '../sandboxes/executor.ts';
import type { OwnedWorkspace } from '../sandboxes/ownership.ts';
import { newId } from '../store/ids.ts';
import type { NewEvent, TurnRow, TurnUpdate } from '../store/rows.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import { contextOf, hashOf } from './context.ts';
import { parseEvent, type EventType, type PayloadOf, type TurnEvent } from './events.ts';
import { fold, type State } from './fold.ts';
import type { Hub } from './hub.ts';
import { next, type Effect, type Limits } from './next.ts';

export type TurnDeps = Readonly<{
  store: WorkspaceStore;
  executor: Executor;
  hub: Hub;
  /** @throws PermanentError */
  model: (className: string, spec: ClassSpec) => Model;
  random?: () => number;
  onEnded?: (phase: string) => void;
}>;

/** A turn's status shows the end of what a command printed (RESOURCES "Turn"). */
const OUTPUT_SHOWN = 2_048;

/** Until it has ended. `cancel` aborts when somebody cancelled it. @throws TransientError, FenceLost: run it again */
export async function runTurn(
  deps: TurnDeps,
  owned: OwnedWorkspace,
  turn: TurnRow,
  cancel: AbortSignal,
): Promise<void> {
  const { store, hub } = deps;
  const workspace = owned.workspace.id;
  const events: TurnEvent[] = [];
  const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  let after = 0n;
  for (;;) {
    owned.signal.throwIfAborted();
    after = await readOn(store, workspace, turn.session, after, events, owned.signal);
    const state = fold(events, turn.id);
    const { spec: classSpec } = (await store.getClass(owned.workspace.class, owned.signal)) ?? { spec: {} };
    const effect = next({
      spec: turn.spec,
      state,
      limits: limitsOf(turn, classSpec),
      cancelled: cancel.aborted,
      random: (deps.random ?? Math.random)(),
    });
    if (effect.do === 'stop') return;
    await perform(effect, state, classSpec);
  }

  async function perform(effect: Exclude<Effect, { do: 'stop' }>, state: State, classSpec: ClassSpec): Promise<void> {
    switch (effect.do) {
      case 'begin':
        return await append([event('turn.started', { ...pickSpec(turn) })], { started: true });
      case 'execute':
        await deps.executor
          .run(
            owned,
            {
              id: newId(),
              command: effect.command,
              timeoutMs: effect.timeoutMs,
              turn: turn.id,
              session: turn.session,
              ...(effect.toolUseId === undefined ? {} : { toolUseId: effect.toolUseId }),
            },
            onOutput,
            cancel,
          )
          .catch((error: unknown) => {
            // Cancelled while it waited for a sandbox: nothing was sent, and the next pass ends the turn.
            if (!(cancel.aborted && error === cancel.reason)) throw error;
          });
        return hub.changed(workspace);
      case 'awaitExecution':
        await deps.executor.adopt(owned, effect.execution, onOutput, cancel);
        return hub.changed(workspace);
      case 'answerCall':
        return await append([
          event('tool.result', { toolUseId: effect.toolUseId, isError: true, content: effect.content }),
        ]);
      case 'requestModel':
        return await requestModel(effect, state, classSpec);
      case 'end':
        await append([event('turn.ended', { phase: effect.phase, reason: effect.reason, message: effect.message })], {
          phase: effect.phase,
          reason: effect.reason,
          message: effect.message,
          finished: true,
          ...summaryOf(turn, state),
        });
        return deps.onEnded?.(effect.phase);
    }
  }

  async function requestModel(
    effect: Extract<Effect, { do: 'requestModel' }>,
    state: State,
    classSpec: ClassSpec,
  ): Promise<void> {
    const stop = AbortSignal.any([cancel, owned.signal]);
    try {
      if (effect.afterMs > 0) await delay(effect.afterMs, undefined, { signal: stop });
      const model = deps.model(owned.workspace.class, classSpec);
      const request = contextOf(state, model.maxOutputTokens);
      await append([
        event('model.requested', { attempt: effect.attempt, model: model.name, requestSha256: hashOf(request) }),
      ]);
      let reply: Reply | undefined;
      for await (const part of model.stream(request, stop)) {
        if (part.type === 'reply') reply = part.reply;
        else hub.delta(workspace, { turn: turn.id, execution: '', kind: 'text', text: part.text });
      }
      if (reply === undefined)
        throw new TransientError('ModelOverloaded', `model ${model.name} ended its stream without a reply`);
      const { blocks, stopReason, usage } = reply;
      await append(
        [event('model.replied', { blocks: [...blocks], stopReason, usage })],
        { steps: state.steps + 1 },
        usage,
      );
    } catch (error) {
      // Told by the next pass: the turn is cancelled, or not ours.
      if (stop.aborted) return;
      if (!isModelFailure(error)) throw error;
      const permanent = error instanceof PermanentError;
      const retryAfterMs = error instanceof TransientError ? error.retryAfterMs : undefined;
      const failure = {
        attempt: effect.attempt,
        reason: error.reason,
        message: error.message,
        permanent,
        ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
      };
      await append([event('model.failed', failure)]);
    }
  }

  async function append(
    list: readonly NewEvent[],
    update?: Omit<TurnUpdate, 'id'>,
    usage?: Reply['usage'],
  ): Promise<void> {
    await store.commit(
      owned.lease,
      {
        changes: [],
        events: list,
        ...(update === undefined ? {} : { turn: { id: turn.id, ...update } }),
        ...(usage === undefined ? {} : { usage: { ...usage, turn: turn.id } }),
      },
      owned.signal,
    );
    hub.changed(workspace);
  }

  function event<T extends EventType>(type: T, payload: PayloadOf<T>): NewEvent {
    return { type, v: 1, session: turn.session, turn: turn.id, payload };
  }

  function onOutput(chunk: OutputChunk): void {
    // A character may be cut at the border of two chunks.
    const text = decoders[chunk.stderr ? 'stderr' : 'stdout'].decode(chunk.data, { stream: true });
    hub.delta(workspace, {
      turn: turn.id,
      execution: '',
      kind: chunk.stderr ? 'stderr' : 'stdout',
      text,
    });
  }
}

async function readOn(
  store: WorkspaceStore,
  workspace: string,
  session: string,
  from: bigint,
  into: TurnEvent[],
  signal: AbortSignal,
): Promise<bigint> {
  let after = from;
  for (;;) {
    const page = await store.readEvents(workspace, { after, session }, signal);
    for (const event of page) {
      const parsed = parseEvent(event);
      if (parsed !== undefined) into.push(parsed);
      after = event.seq;
    }
    if (page.length < 1_000) return after;
  }
}

/** What the Turn asks for, within what the class allows. */
function limitsOf(turn: TurnRow, classSpec: ClassSpec): Limits {
  const ceiling = parseDuration(classSpec.limits?.commandTimeout ?? DEFAULTS.limits.commandTimeoutMax) ?? 0;
  const asked = parseDuration(turn.spec.limits?.commandTimeout ?? DEFAULTS.limits.commandTimeout) ?? 0;
  return {
    steps: Math.min(
      turn.spec.limits?.steps ?? DEFAULTS.limits.steps,
      classSpec.limits?.steps ?? Number.MAX_SAFE_INTEGER,
    ),
    commandTimeoutMs: Math.min(asked, ceiling),
    maxCommandTimeoutMs: ceiling,
  };
}

function summaryOf(turn: TurnRow, state: State): Omit<TurnUpdate, 'id'> {
  const outcome = turn.spec.command === undefined ? undefined : state.lastOutcome;
  return {
    steps: state.steps,
    usage: state.usage,
    files: state.files,
    ...(state.answer === undefined ? {} : { answer: state.answer }),
    ...(outcome === undefined ? {} : { output: joined(outcome).slice(-OUTPUT_SHOWN) }),
    ...(outcome?.exitCode === undefined ? {} : { exitCode: outcome.exitCode }),
    ...(state.fromVersion === undefined ? {} : { fromVersion: BigInt(state.fromVersion) }),
    ...(state.toVersion === undefined ? {} : { toVersion: BigInt(state.toVersion) }),
  };
}

function pickSpec(turn: TurnRow): PayloadOf<'turn.started'> {
  const { message, command } = turn.spec;
  return { ...(message === undefined ? {} : { message }), ...(command === undefined ? {} : { command }) };
}

/** The model's, not the store's or the sandbox's. */
function isModelFailure(error: unknown): error is TransientError | PermanentError {
  return (
    (error instanceof TransientError || error instanceof PermanentError) &&
    (error.reason.startsWith('Model') || ['NotFound', 'ProviderNotIsolated'].includes(error.reason))
  );
}
