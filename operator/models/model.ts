/** What a model is to the harness. Adding a provider is one file beside this and its line in `registry.ts`. */

/** A content block of the Messages API; kinds that we do not know pass through. */
export type Block = { type: string; [key: string]: unknown };

export type ModelRequest = Readonly<{
  system: string;
  messages: readonly Readonly<{ role: 'user' | 'assistant'; content: readonly Block[] }>[];
  tools: readonly Readonly<{ name: string; description: string; input_schema: object }>[];
  maxOutputTokens: number;
  /** How many replies this turn has had; a script goes by it. */
  reply: number;
}>;
export type Reply = Readonly<{
  blocks: readonly Block[];
  stopReason: string;
  usage: Readonly<{ inputTokens: number; outputTokens: number; cacheReadTokens: number; cacheCreationTokens: number }>;
}>;
export type ModelEvent = Readonly<{ type: 'text'; text: string } | { type: 'reply'; reply: Reply }>;
export type Model = Readonly<{
  name: string;
  provider: 'Anthropic' | 'Scripted';
  maxOutputTokens?: number;
  /**
   * Always streams; the last event is the reply. Leaving the loop or aborting ends the request.
   * @throws TransientError ModelOverloaded, ModelRateLimited (with retryAfterMs); PermanentError ModelAuthFailed, ModelRefused
   */
  stream(request: ModelRequest, signal: AbortSignal): AsyncIterable<ModelEvent>;
}>;
