/** The Messages API, by its official SDK, streaming always. Retries are the harness's: each is in the log. */
import Anthropic, { APIConnectionError, APIError, APIUserAbortError } from '@anthropic-ai/sdk';
import { PermanentError, TransientError } from '../errors.ts';
import type { Block, Model, ModelEvent, ModelRequest } from './model.ts';

export type AnthropicOptions = Readonly<{
  name: string;
  model: string;
  apiKey: () => Promise<string>;
  baseURL?: string;
  maxOutputTokens?: number;
  idleTimeoutMs?: number;
}>;

/** A stream that says nothing for this long is given up (M1). */
const IDLE_MS = 120_000;

export function anthropicModel(options: AnthropicOptions): Model {
  return {
    name: options.name,
    provider: 'Anthropic',
    ...(options.maxOutputTokens === undefined ? {} : { maxOutputTokens: options.maxOutputTokens }),
    stream: async function* (request, signal): AsyncIterable<ModelEvent> {
      const client = new Anthropic({
        apiKey: await options.apiKey(),
        // Absent means the provider's own, never what this process's environment says.
        baseURL: options.baseURL ?? 'https://api.anthropic.com',
        authToken: null,
        maxRetries: 0,
      });
      const idle = idleTimer(options.idleTimeoutMs ?? IDLE_MS);
      try {
        const stream = client.messages.stream(bodyOf(options.model, request), {
          signal: AbortSignal.any([signal, idle.signal]),
        });
        // Awaited below; unhandled until then it would end the process.
        stream.on('error', () => undefined);
        for await (const event of stream) {
          idle.touch();
          if (event.type === 'content_block_delta' && event.delta.type === 'text_delta')
            yield { type: 'text', text: event.delta.text };
        }
        const message = await stream.finalMessage();
        if (message.stop_reason === 'refusal')
          throw new PermanentError('ModelRefused', `model ${options.name} refused to go on`);
        yield {
          type: 'reply',
          reply: {
            blocks: message.content as unknown as Block[],
            stopReason: message.stop_reason ?? 'end_turn',
            usage: {
              inputTokens: message.usage.input_tokens,
              outputTokens: message.usage.output_tokens,
              cacheReadTokens: message.usage.cache_read_input_tokens ?? 0,
              cacheCreationTokens: message.usage.cache_creation_input_tokens ?? 0,
            },
          },
        };
      } catch (error) {
        signal.throwIfAborted();
        throw translate(options.name, error, idle.signal.aborted ? (options.idleTimeoutMs ?? IDLE_MS) : undefined);
      } finally {
        idle[Symbol.dispose]();
      }
    },
  };
}

/** By status and class, never by text. */
function translate(model: string, error: unknown, silentMs: number | undefined): unknown {
  if (error instanceof PermanentError || error instanceof TransientError) return error;
  if (silentMs !== undefined)
    return new TransientError('ModelOverloaded', `model ${model} sent nothing for ${silentMs} ms`, { cause: error });
  if (error instanceof APIError && error.status !== undefined) {
    const retryAfterMs = retryAfter(error.headers);
    const said = `model ${model} answered ${error.status}`;
    const more = { cause: error, ...(retryAfterMs === undefined ? {} : { retryAfterMs }) };
    if (error.status === 401 || error.status === 403)
      return new PermanentError('ModelAuthFailed', `${said}; check the key in its apiKeySecret`, { cause: error });
    if (error.status === 429) return new TransientError('ModelRateLimited', said, more);
    if (error.status >= 500) return new TransientError('ModelOverloaded', said, more);
    return new PermanentError('ModelRefused', `${said}: ${error.message}`, { cause: error });
  }
  // An error event inside a stream has no status; a broken stream is none of the SDK's classes.
  if (
    error instanceof APIError ||
    error instanceof APIConnectionError ||
    error instanceof APIUserAbortError ||
    error instanceof Error
  ) {
    return new TransientError('ModelOverloaded', `the stream of model ${model} broke: ${error.message}`, {
      cause: error,
    });
  }
  return error;
}

function retryAfter(headers: Headers | undefined): number | undefined {
  const seconds = Number(headers?.get('retry-after') ?? Number.NaN);
  return Number.isFinite(seconds) && seconds >= 0 ? Math.min(seconds, 3_600) * 1_000 : undefined;
}

function bodyOf(model: string, request: ModelRequest): Anthropic.MessageCreateParamsNonStreaming {
  const cached = { cache_control: { type: 'ephemeral' } } as const;
  // Marked at its end, a growing transcript is read from the provider's cache up to the last request.
  const messages = request.messages.map((message, i) => ({
    role: message.role,
    content: message.content.map((block, j) =>
      i === request.messages.length - 1 && j === message.content.length - 1 && block.type !== 'thinking'
        ? { ...block, ...cached }
        : block,
    ),
  }));
  return {
    model,
    max_tokens: request.maxOutputTokens,
    system: [{ type: 'text', text: request.system, ...cached }],
    messages: messages as unknown as Anthropic.MessageParam[],
    tools: request.tools as unknown as Anthropic.Tool[],
  };
}

function idleTimer(ms: number): Disposable & { signal: AbortSignal; touch(): void } {
  const abort = new AbortController();
  let timer = setTimeout(() => abort.abort(), ms);
  return {
    signal: abort.signal,
    touch: () => {
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), ms);
    },
    [Symbol.dispose]: () => clearTimeout(timer),
  };
}
