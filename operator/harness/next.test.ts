import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { TurnSpec } from '../../crds/types.ts';
import type { Outcome } from '../sandboxes/outcome.ts';
import type { TurnEvent } from './events.ts';
import { fold } from './fold.ts';
import { MAX_ATTEMPTS, next, type Effect } from './next.ts';

const limits = { steps: 3, commandTimeoutMs: 1_000, maxCommandTimeoutMs: 5_000 };
const usage = { inputTokens: 1, outputTokens: 2, cacheReadTokens: 0, cacheCreationTokens: 0 };
const message: TurnSpec = { workspace: 'w', message: 'do it' };
const command: TurnSpec = { workspace: 'w', command: 'true' };
const outcome: Outcome = {
  ...{
    state: 'done',
    exitCode: 0,
    timedOut: false,
    cancelled: false,
    outOfMemory: false,
    outputBytes: 3,
    droppedBytes: 0,
    head: 'out',
    tail: '',
    omittedBytes: 0,
  },
  ...{
    files: { created: 1, changed: 0, deleted: 0, paths: ['/a'] },
    refused: [],
    runMs: 1,
    fromVersion: 0,
    toVersion: 1,
  },
};
const started: TurnEvent = { type: 'turn.started', turn: 't', payload: { message: 'do it' } };
const replied = (...blocks: { type: string; [key: string]: unknown }[]): TurnEvent => ({
  type: 'model.replied',
  turn: 't',
  payload: { blocks, stopReason: 'x', usage },
});
const text = (t: string) => ({ type: 'text', text: t });
const call = (id: string, name = 'Bash', input: unknown = { command: 'ls' }) => ({ type: 'tool_use', id, name, input });
const sent = (x: string, toolUseId?: string): TurnEvent => ({
  type: 'execution.dispatched',
  turn: 't',
  execution: x,
  payload: { command: 'ls', timeoutMs: 1, ...(toolUseId ? { toolUseId } : {}) },
});
const done = (x: string, more: Partial<Outcome> = {}): TurnEvent => ({
  type: 'execution.done',
  turn: 't',
  execution: x,
  payload: { ...outcome, ...more },
});
const failed = (reason: string, permanent = false, retryAfterMs?: number): TurnEvent => ({
  type: 'model.failed',
  turn: 't',
  payload: { attempt: 1, reason, message: 'm', permanent, ...(retryAfterMs === undefined ? {} : { retryAfterMs }) },
});
const after = (spec: TurnSpec, events: readonly TurnEvent[], cancelled = false): Effect =>
  next({ spec, state: fold(events, 't'), limits, cancelled, random: 1 });

describe('what a turn does next', () => {
  test.for<[situation: string, spec: TurnSpec, events: TurnEvent[], want: Partial<Effect>]>([
    ['nothing was done yet', message, [], { do: 'begin' }],
    ['it began', message, [started], { do: 'requestModel', attempt: 1, afterMs: 0 }],
    [
      'the model answered',
      message,
      [started, replied(text('done'))],
      { do: 'end', phase: 'Completed', reason: 'Answered' } as Partial<Effect>,
    ],
    [
      'the model asks for a command',
      message,
      [started, replied(call('c1'))],
      { do: 'execute', command: 'ls', toolUseId: 'c1', timeoutMs: 1_000 },
    ],
    [
      'it asks for more time than there is',
      message,
      [started, replied(call('c1', 'Bash', { command: 'ls', timeout_ms: 99_999 }))],
      { do: 'execute', timeoutMs: 5_000 },
    ],
    [
      'a command was sent and no result is known',
      message,
      [started, replied(call('c1')), sent('x', 'c1')],
      { do: 'awaitExecution', execution: 'x' },
    ],
    [
      'the second call of a reply comes after the first',
      message,
      [started, replied(call('c1'), call('c2')), sent('x', 'c1'), done('x')],
      { do: 'execute', toolUseId: 'c2' },
    ],
    [
      'every call has its result',
      message,
      [started, replied(call('c1')), sent('x', 'c1'), done('x')],
      { do: 'requestModel', attempt: 1 },
    ],
    [
      'M5: an unknown tool is answered with what there is',
      message,
      [started, replied(call('c1', 'Edit'))],
      { do: 'answerCall', toolUseId: 'c1' },
    ],
    [
      'M5: arguments that do not fit are answered with what would',
      message,
      [started, replied(call('c1', 'Bash', { cmd: 'ls' }))],
      { do: 'answerCall', toolUseId: 'c1' },
    ],
    [
      'M1: a failure that time may heal',
      message,
      [started, failed('ModelOverloaded')],
      { do: 'requestModel', attempt: 2, afterMs: 1_000 },
    ],
    [
      'M1: the provider says how long to wait',
      message,
      [started, failed('ModelRateLimited', false, 9_000)],
      { do: 'requestModel', attempt: 2, afterMs: 9_000 },
    ],
    [
      'M1: enough of it',
      message,
      [started, ...Array.from({ length: MAX_ATTEMPTS }, () => failed('ModelOverloaded'))],
      { do: 'end', phase: 'Failed', reason: 'ModelOverloaded' } as Partial<Effect>,
    ],
    [
      'M1: a failure that no retry helps',
      message,
      [started, failed('ModelAuthFailed', true)],
      { do: 'end', phase: 'Failed', reason: 'ModelAuthFailed' } as Partial<Effect>,
    ],
    [
      'a success in between forgets failures',
      message,
      [started, failed('ModelOverloaded'), replied(call('c1')), sent('x', 'c1'), done('x')],
      { do: 'requestModel', attempt: 1 },
    ],
    [
      'TL10: its last step is used up',
      message,
      [started, ...['1', '2', '3'].flatMap((n) => [replied(call(n)), sent(`x${n}`, n), done(`x${n}`)])],
      { do: 'end', phase: 'Blocked', reason: 'StepLimit' } as Partial<Effect>,
    ],
    [
      'it ended',
      message,
      [started, { type: 'turn.ended', turn: 't', payload: { phase: 'Completed', reason: 'r', message: '' } }],
      { do: 'stop' },
    ],
    ['a command turn', command, [started], { do: 'execute', command: 'true' }],
    [
      'a command that succeeded',
      command,
      [started, sent('x'), done('x')],
      { do: 'end', phase: 'Completed', reason: 'CommandSucceeded' } as Partial<Effect>,
    ],
    [
      'a command that failed',
      command,
      [started, sent('x'), done('x', { exitCode: 2 })],
      { do: 'end', phase: 'Failed', reason: 'CommandFailed' } as Partial<Effect>,
    ],
    [
      'a command that ran over its time',
      command,
      [started, sent('x'), done('x', { timedOut: true })],
      { do: 'end', phase: 'Failed', reason: 'DeadlineExceeded' } as Partial<Effect>,
    ],
    [
      'a command that ran out of memory',
      command,
      [started, sent('x'), done('x', { outOfMemory: true })],
      { do: 'end', phase: 'Failed', reason: 'OutOfMemory' } as Partial<Effect>,
    ],
    [
      'A3: a command of unknown outcome is not run again',
      command,
      [started, sent('x'), done('x', { state: 'unknown', reason: 'SandboxLost' })],
      { do: 'end', phase: 'Failed', reason: 'SandboxLost' } as Partial<Effect>,
    ],
  ])('%s', ([, spec, events, want]) => expect(after(spec, events)).toMatchObject(want));

  test.for<[situation: string, events: TurnEvent[], want: Partial<Effect>]>([
    ['before the model was asked', [started], { do: 'end' }],
    ['with a call open', [started, replied(call('c1'))], { do: 'end' }],
    [
      'with a command under way: its end is taken in first',
      [started, replied(call('c1')), sent('x', 'c1')],
      { do: 'awaitExecution' },
    ],
  ])('M4: cancelled %s', ([, events, want]) => expect(after(message, events, true)).toMatchObject(want));
});

describe('the transcript', () => {
  test('results of one reply are one message, in order, each call answered once', () => {
    const { messages } = fold(
      [
        started,
        replied(text('t'), call('c1'), call('c2')),
        sent('x', 'c1'),
        done('x'),
        sent('y', 'c2'),
        done('y', { exitCode: 1 }),
      ],
      't',
    );
    expect(messages.map((m) => [m.role, m.content.map((b) => b.type)])).toEqual([
      ['user', ['text']],
      ['assistant', ['text', 'tool_use', 'tool_use']],
      ['user', ['tool_result', 'tool_result']],
    ]);
    expect(messages[2]?.content.map((b) => [b['tool_use_id'], b['is_error'] ?? false])).toEqual([
      ['c1', false],
      ['c2', true],
    ]);
  });

  test('a turn that ended between a call and its result leaves a transcript that can be sent', () => {
    const ended: TurnEvent = {
      type: 'turn.ended',
      turn: 't',
      payload: { phase: 'Cancelled', reason: 'Cancelled', message: '' },
    };
    const { messages } = fold([started, replied(call('c1')), ended, { ...started, turn: 'u' }], 'u');
    expect(messages.at(-1)?.content.map((b) => b.type)).toEqual(['tool_result', 'text']);
  });

  test('a model is told what was refused, and that an unknown outcome was not repeated', () => {
    const refused = [{ path: '/x', reason: 'ScopeRefused', message: '"/x" is outside' }];
    const { messages } = fold(
      [
        started,
        replied(call('c1'), call('c2')),
        sent('x', 'c1'),
        done('x', { refused }),
        sent('y', 'c2'),
        done('y', { state: 'unknown', reason: 'SandboxLost', message: 'gone' }),
      ],
      't',
    );
    const said = messages.at(-1)?.content.map((b) => String(b['content'])) ?? [];
    expect(said[0]).toContain('not kept: "/x" is outside');
    expect(said[1]).toContain('was not run again');
  });

  test('TL21: whatever events there are, fold and next have an answer', () => {
    const event = fc.constantFrom(
      started,
      replied(text('a')),
      replied(call('c1')),
      replied(call('c1'), call('c2', 'X')),
      sent('x', 'c1'),
      sent('y'),
      done('x'),
      done('y'),
      failed('ModelOverloaded'),
      { ...started, turn: 'u' } as TurnEvent,
    );
    fc.assert(
      fc.property(fc.array(event, { maxLength: 12 }), fc.boolean(), fc.boolean(), (events, isCommand, cancelled) => {
        expect(after(isCommand ? command : message, events, cancelled).do).toBeTypeOf('string');
      }),
      { numRuns: 500 },
    );
  });
});
