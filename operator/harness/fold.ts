/** What a session's events amount to: the transcript, and where the turn stands. Pure and total. */
import { joined } from '../files/head-tail.ts';
import type { Outcome } from '../sandboxes/outcome.ts';
import type { FileCounts, Usage } from '../store/rows.ts';
import type { Block, TurnEvent } from './events.ts';

export type Message = Readonly<{ role: 'user' | 'assistant'; content: readonly Block[] }>;
export type Call = Readonly<{ toolUseId: string; name: string; input: unknown }>;
export type State = Readonly<{
  /** Of the whole session, as the model gets it. */
  messages: readonly Message[];
  started: boolean;
  ended: boolean;
  /** Replies of the model in this turn. */
  steps: number;
  /** Calls of the last reply without a result, in the order stated. */
  openCalls: readonly Call[];
  /** Sent and not known to have ended. */
  openExecution: Readonly<{ execution: string; toolUseId?: string }> | undefined;
  /** Since the last reply. */
  failures: readonly Readonly<{ reason: string; message: string; permanent: boolean; retryAfterMs?: number }>[];
  /** Text of the last reply that made no call. */
  answer: string | undefined;
  lastOutcome: Outcome | undefined;
  usage: Usage;
  files: FileCounts;
  fromVersion: number | undefined;
  toVersion: number | undefined;
}>;

type Draft = { -readonly [K in keyof State]: State[K] };

const EMPTY: State = {
  messages: [],
  started: false,
  ended: false,
  steps: 0,
  openCalls: [],
  openExecution: undefined,
  failures: [],
  answer: undefined,
  lastOutcome: undefined,
  usage: { inputTokens: 0, outputTokens: 0, cacheReadTokens: 0, cacheCreationTokens: 0 },
  files: { created: 0, changed: 0, deleted: 0, paths: [] },
  fromVersion: undefined,
  toVersion: undefined,
};

/** `turn`: the one that is asked about; events of the session's other turns are transcript only. */
export function fold(events: readonly TurnEvent[], turn: string): State {
  const state: Draft = { ...EMPTY };
  /** Which call an execution is the answer of, over the whole session. */
  const callOf = new Map<string, string>();
  const commandOf = new Map<string, string>();
  for (const event of events) {
    const ours = event.turn === turn;
    switch (event.type) {
      case 'turn.started':
        if (event.payload.message !== undefined) say(state, 'user', { type: 'text', text: event.payload.message });
        if (ours) state.started = true;
        break;
      case 'model.requested':
        break;
      case 'model.replied': {
        // A reply without any block would be refused by every provider when it is sent again.
        if (event.payload.blocks.length > 0)
          state.messages = [...state.messages, { role: 'assistant', content: event.payload.blocks }];
        const calls = event.payload.blocks.flatMap(callIn);
        if (!ours) break;
        state.steps += 1;
        state.failures = [];
        state.openCalls = calls;
        state.answer = calls.length === 0 ? textOf(event.payload.blocks) : undefined;
        state.usage = add(state.usage, event.payload.usage);
        break;
      }
      case 'model.failed':
        if (ours) state.failures = [...state.failures, event.payload];
        break;
      case 'execution.dispatched':
        if (event.execution === undefined) break;
        if (event.payload.toolUseId !== undefined) callOf.set(event.execution, event.payload.toolUseId);
        commandOf.set(event.execution, event.payload.command);
        if (ours)
          state.openExecution = {
            execution: event.execution,
            ...(event.payload.toolUseId === undefined ? {} : { toolUseId: event.payload.toolUseId }),
          };
        break;
      case 'execution.done': {
        const id = event.execution ?? '';
        const toolUseId = callOf.get(id);
        if (toolUseId !== undefined) answerCall(state, toolUseId, describe(event.payload), failed(event.payload));
        else
          say(state, 'user', {
            type: 'text',
            text: `A person ran a command in the workspace:\n$ ${commandOf.get(id) ?? '(unknown)'}\n${describe(event.payload)}`,
          });
        if (!ours) break;
        state.openExecution = undefined;
        state.lastOutcome = event.payload;
        state.files = addFiles(state.files, event.payload.files);
        state.fromVersion ??= event.payload.fromVersion;
        state.toVersion = event.payload.toVersion ?? state.toVersion;
        break;
      }
      case 'tool.result':
        answerCall(state, event.payload.toolUseId, event.payload.content, event.payload.isError);
        break;
      case 'files.committed':
        break;
      case 'turn.ended':
        // A turn that was cancelled between a call and its result must leave a transcript that can be sent.
        for (const call of ours ? state.openCalls : unanswered(state.messages))
          answerCall(state, call.toolUseId, 'The turn ended before this call was run.', true);
        if (ours) state.ended = true;
        break;
    }
  }
  return state;
}

/** What a model is told of how a command ended. */
export function describe(outcome: Outcome): string {
  const lines = [joined(outcome).trimEnd()];
  if (outcome.state === 'unknown') {
    lines.push(
      `[the outcome is unknown (${outcome.reason ?? 'Unknown'}): ${outcome.message ?? ''}. It was not run again. What it changed is not in the workspace.]`,
    );
  } else if (outcome.exitCode === undefined)
    lines.push(`[${outcome.message ?? `ended by ${outcome.signal ?? 'a signal'}`}]`);
  else lines.push(`[exit code ${outcome.exitCode}]`);
  if (outcome.timedOut) lines.push('[it ran over its time and was ended]');
  if (outcome.cancelled) lines.push('[it was cancelled]');
  if (outcome.outOfMemory) lines.push('[a process of it was killed for want of memory]');
  if (outcome.droppedBytes > 0)
    lines.push(`[${outcome.droppedBytes} bytes of output were over the limit and are lost]`);
  for (const { message } of outcome.refused) lines.push(`[not kept: ${message}. It was put back.]`);
  for (const path of outcome.conflicts ?? [])
    lines.push(`[not kept: ${path} was changed by somebody else meanwhile. It was put back.]`);
  return lines.filter((line) => line !== '').join('\n');
}

export function failed(outcome: Outcome): boolean {
  return outcome.state === 'unknown' || outcome.exitCode !== 0;
}

function callIn(block: Block): Call[] {
  if (block.type !== 'tool_use') return [];
  return [{ toolUseId: String(block['id']), name: String(block['name']), input: block['input'] }];
}

function textOf(blocks: readonly Block[]): string {
  return blocks.flatMap((block) => (block.type === 'text' ? [String(block['text'])] : [])).join('');
}

/** Joined to the last message when that has the same role: results of one reply's calls are one message. */
function say(state: Draft, role: 'user' | 'assistant', content: Block): void {
  const last = state.messages.at(-1);
  state.messages =
    last?.role === role
      ? [...state.messages.slice(0, -1), { role, content: [...last.content, content] }]
      : [...state.messages, { role, content: [content] }];
}

function answerCall(state: Draft, toolUseId: string, content: string, isError: boolean): void {
  state.openCalls = state.openCalls.filter((call) => call.toolUseId !== toolUseId);
  say(state, 'user', { type: 'tool_result', tool_use_id: toolUseId, content, ...(isError ? { is_error: true } : {}) });
}

function unanswered(messages: readonly Message[]): readonly Call[] {
  const answered = new Set(
    messages.flatMap((m) => m.content.flatMap((b) => (b.type === 'tool_result' ? [String(b['tool_use_id'])] : []))),
  );
  return messages.flatMap((m) => m.content.flatMap(callIn)).filter((call) => !answered.has(call.toolUseId));
}

function add(a: Usage, b: Usage): Usage {
  return {
    inputTokens: a.inputTokens + b.inputTokens,
    outputTokens: a.outputTokens + b.outputTokens,
    cacheReadTokens: a.cacheReadTokens + b.cacheReadTokens,
    cacheCreationTokens: a.cacheCreationTokens + b.cacheCreationTokens,
  };
}

function addFiles(a: FileCounts, b: FileCounts): FileCounts {
  return {
    created: a.created + b.created,
    changed: a.changed + b.changed,
    deleted: a.deleted + b.deleted,
    paths: [...new Set([...a.paths, ...b.paths])].slice(0, 20),
  };
}
