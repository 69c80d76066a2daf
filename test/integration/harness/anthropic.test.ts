/** The adapter through the real SDK, against a server that speaks the Messages API. */
import { expect, test } from 'vitest';
import { anthropicModel } from '../../../operator/models/anthropic.ts';
import type { ModelEvent, ModelRequest } from '../../../operator/models/model.ts';
import { startMessagesApi, type Step } from '../../fakes/messages-api.ts';

const request: ModelRequest = {
  system: 'be brief',
  messages: [{ role: 'user', content: [{ type: 'text', text: 'hello' }] }],
  tools: [],
  maxOutputTokens: 100,
  reply: 0,
};

async function ask(steps: readonly Step[], options: { idleTimeoutMs?: number; signal?: AbortSignal } = {}) {
  await using api = await startMessagesApi(steps);
  const model = anthropicModel({
    name: 'm',
    model: 'real-name',
    baseURL: api.baseURL,
    apiKey: async () => 'key',
    idleTimeoutMs: options.idleTimeoutMs ?? 10_000,
  });
  const events: ModelEvent[] = [];
  for await (const event of model.stream(request, options.signal ?? AbortSignal.timeout(20_000))) events.push(event);
  return { events, asked: api.asked };
}

test('UI1: text arrives in pieces, then the whole reply with its calls and usage', async () => {
  const tools = [{ id: 'toolu_1', name: 'Bash', input: { command: 'echo "é" && ls' } }];
  const { events, asked } = await ask([
    { kind: 'reply', text: 'I look first.', tools, usage: { input: 11, output: 22, cacheRead: 33 } },
  ]);
  expect(events.filter((e) => e.type === 'text').length).toBeGreaterThan(1);
  expect(events.flatMap((e) => (e.type === 'text' ? [e.text] : [])).join('')).toBe('I look first.');
  expect(events.at(-1)).toMatchObject({
    type: 'reply',
    reply: {
      blocks: [
        { type: 'text', text: 'I look first.' },
        { type: 'tool_use', id: 'toolu_1', name: 'Bash', input: { command: 'echo "é" && ls' } },
      ],
      stopReason: 'tool_use',
      usage: { inputTokens: 11, outputTokens: 22, cacheReadTokens: 33, cacheCreationTokens: 0 },
    },
  });
  expect(asked[0]?.headers.authorization).toBe('Bearer key');
  expect(asked[0]?.body).toMatchObject({ model: 'real-name', stream: true, max_tokens: 100 });
});

test.for<[situation: string, step: Step, error: object]>([
  ['overloaded', { kind: 'status', status: 529 }, { name: 'TransientError', reason: 'ModelOverloaded' }],
  [
    'rate limited, with a time to wait',
    { kind: 'status', status: 429, retryAfter: 7 },
    { name: 'TransientError', reason: 'ModelRateLimited', retryAfterMs: 7_000 },
  ],
  [
    'an error in the middle of the stream',
    { kind: 'errorEvent' },
    { name: 'TransientError', reason: 'ModelOverloaded' },
  ],
  ['the stream is cut', { kind: 'cut' }, { name: 'TransientError', reason: 'ModelOverloaded' }],
  ['a wrong key', { kind: 'status', status: 401 }, { name: 'PermanentError', reason: 'ModelAuthFailed' }],
  ['a bad request', { kind: 'status', status: 400 }, { name: 'PermanentError', reason: 'ModelRefused' }],
  ['the model refuses', { kind: 'refusal' }, { name: 'PermanentError', reason: 'ModelRefused' }],
])('M1: %s is told apart by its code', async ([, step, error]) => {
  await expect(ask([step])).rejects.toMatchObject(error);
});

test('M1: a stream that says nothing is given up after its idle time', async () => {
  await expect(ask([{ kind: 'silence' }], { idleTimeoutMs: 200 })).rejects.toMatchObject({
    reason: 'ModelOverloaded',
    message: expect.stringContaining('200 ms'),
  });
});

test('aborting ends the request with the reason it was aborted for', async () => {
  const abort = new AbortController();
  const asking = ask([{ kind: 'silence' }], { signal: abort.signal });
  setImmediate(() => abort.abort(new Error('cancelled')));
  await expect(asking).rejects.toThrow('cancelled');
});
