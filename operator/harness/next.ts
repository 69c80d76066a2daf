/** What a turn does next. Pure and total: the harness decides in code, never the model. */
import type { TurnSpec } from '../../crds/types.ts';
import type { TurnPhase } from '../store/rows.ts';
import type { Call, State } from './fold.ts';
import { decide } from './policy.ts';
import { bashInput } from './tools.ts';

export type Limits = Readonly<{ steps: number; commandTimeoutMs: number; maxCommandTimeoutMs: number }>;
export type Ended = Readonly<{
  phase: Extract<TurnPhase, 'Completed' | 'Blocked' | 'Cancelled' | 'Failed'>;
  reason: string;
  message: string;
}>;
export type Effect =
  | Readonly<{ do: 'begin' }>
  | Readonly<{ do: 'requestModel'; attempt: number; afterMs: number }>
  | Readonly<{ do: 'execute'; command: string; timeoutMs: number; toolUseId?: string }>
  | Readonly<{ do: 'awaitExecution'; execution: string }>
  | Readonly<{ do: 'answerCall'; toolUseId: string; content: string }>
  | (Readonly<{ do: 'end' }> & Ended)
  | Readonly<{ do: 'stop' }>;
export type Situation = Readonly<{
  spec: TurnSpec;
  state: State;
  limits: Limits;
  cancelled: boolean;
  /** 0 to 1. */ random: number;
}>;

/** Tries of one model request (M1). */
export const MAX_ATTEMPTS = 5;
const FIRST_RETRY_MS = 1_000;
const MAX_RETRY_MS = 60_000;

export function next({ spec, state, limits, cancelled, random }: Situation): Effect {
  if (state.ended) return { do: 'stop' };
  if (!state.started) return { do: 'begin' };
  // It was sent: how it ended is always taken in first, be it by cancelling it.
  if (state.openExecution !== undefined) return { do: 'awaitExecution', execution: state.openExecution.execution };
  if (cancelled)
    return end('Cancelled', 'Cancelled', 'somebody cancelled the turn; what finished commands changed is kept');
  if (spec.command !== undefined) {
    return state.lastOutcome === undefined
      ? { do: 'execute', command: spec.command, timeoutMs: limits.commandTimeoutMs }
      : commandEnd(state.lastOutcome);
  }
  const call = state.openCalls[0];
  if (call !== undefined) return forCall(call, limits);
  if (state.answer !== undefined) return end('Completed', 'Answered', 'the model answered with no further call');
  const failure = state.failures.at(-1);
  if (failure !== undefined && (failure.permanent || state.failures.length >= MAX_ATTEMPTS)) {
    const tries = state.failures.length === 1 ? '' : ` (after ${state.failures.length} tries)`;
    return end('Failed', failure.reason, `${failure.message}${tries}`);
  }
  if (state.steps >= limits.steps)
    return end(
      'Blocked',
      'StepLimit',
      `the model replied ${state.steps} times, limits.steps is ${limits.steps}; a new turn continues the session`,
    );
  const backOff = Math.min(MAX_RETRY_MS, FIRST_RETRY_MS * 2 ** (state.failures.length - 1)) * (0.5 + random / 2);
  const afterMs = failure === undefined ? 0 : Math.max(failure.retryAfterMs ?? 0, backOff);
  return { do: 'requestModel', attempt: state.failures.length + 1, afterMs: Math.round(afterMs) };
}

function forCall(call: Call, limits: Limits): Effect {
  const answer = (content: string): Effect => ({ do: 'answerCall', toolUseId: call.toolUseId, content });
  if (call.name !== 'Bash')
    return answer(`There is no tool ${JSON.stringify(call.name)}. The one tool is Bash, with {"command": "…"}.`);
  const input = bashInput.safeParse(call.input);
  if (!input.success) {
    return answer(
      `The input does not fit Bash: ${input.error.issues.map((i) => `${i.path.join('.') || 'input'}: ${i.message}`).join('; ')}. It takes {"command": string, "timeout_ms"?: integer, "description"?: string}.`,
    );
  }
  const verdict = decide({ command: input.data.command });
  if (verdict.do === 'deny') return answer(`Denied: ${verdict.reason}`);
  const timeoutMs = Math.min(input.data.timeout_ms ?? limits.commandTimeoutMs, limits.maxCommandTimeoutMs);
  return { do: 'execute', command: input.data.command, timeoutMs, toolUseId: call.toolUseId };
}

function commandEnd(outcome: NonNullable<State['lastOutcome']>): Effect {
  if (outcome.state === 'unknown')
    return end(
      'Failed',
      outcome.reason ?? 'Unknown',
      `how the command ended is unknown: ${outcome.message ?? ''}; it was not run again`,
    );
  if (outcome.timedOut)
    return end(
      'Failed',
      'DeadlineExceeded',
      'the command ran over its time and was ended; raise limits.commandTimeout',
    );
  if (outcome.outOfMemory)
    return end(
      'Failed',
      'OutOfMemory',
      "the command ran out of memory; raise the Workspace's environment.resources.memory",
    );
  if (outcome.exitCode === 0) return end('Completed', 'CommandSucceeded', 'the command ended with exit code 0');
  const how =
    outcome.exitCode === undefined
      ? (outcome.message ?? `ended by ${outcome.signal ?? 'a signal'}`)
      : `ended with exit code ${outcome.exitCode}`;
  return end('Failed', 'CommandFailed', `the command ${how}`);
}

function end(phase: Ended['phase'], reason: string, message: string): Effect {
  return { do: 'end', phase, reason, message };
}
