/** Replies that were written beforehand: deterministic, for tests and examples, and the only unreal provider. */
import { setTimeout as delay } from 'node:timers/promises';
import { parse } from 'yaml';
import { z } from 'zod';
import { PermanentError } from '../errors.ts';
import type { Block, Model, ModelEvent } from './model.ts';

const scriptSchema = z.array(
  z.object({
    text: z.string().optional(),
    tools: z
      .array(z.object({ name: z.string().optional(), command: z.string().optional(), input: z.unknown().optional() }))
      .optional(),
    /** Before the reply begins. */
    delayMs: z.int().min(0).max(600_000).optional(),
  }),
);
export type Script = z.infer<typeof scriptSchema>;

const PIECE = 16;

/** @throws PermanentError naming the model and what is wrong in its script */
export function parseScript(model: string, text: string): Script {
  try {
    return scriptSchema.parse(parse(text));
  } catch (cause) {
    throw new PermanentError(
      'ModelRefused',
      `the script of model ${model} is not a list of {text, tools: [{command}]}: ${cause instanceof Error ? cause.message : String(cause)}`,
      { cause },
    );
  }
}

/** The reply goes by how many the turn has had; after the last one the model has no further call to make. */
export function scriptedModel(name: string, script: Script): Model {
  return {
    name,
    provider: 'Scripted',
    stream: async function* (request, signal): AsyncIterable<ModelEvent> {
      signal.throwIfAborted();
      const reply = script[request.reply] ?? { text: 'The script has no further reply.' };
      if (reply.delayMs !== undefined) await delay(reply.delayMs, undefined, { signal });
      const text = reply.text ?? '';
      for (let at = 0; at < text.length; at += PIECE) yield { type: 'text', text: text.slice(at, at + PIECE) };
      const blocks: Block[] = [
        ...(text === '' ? [] : [{ type: 'text', text }]),
        ...(reply.tools ?? []).map((tool, i) => ({
          type: 'tool_use',
          id: `call_${request.reply}_${i}`,
          name: tool.name ?? 'Bash',
          input: tool.input ?? { command: tool.command ?? '' },
        })),
      ];
      yield {
        type: 'reply',
        reply: {
          blocks,
          stopReason: reply.tools === undefined ? 'end_turn' : 'tool_use',
          usage: { inputTokens: 0, outputTokens: 0, cacheReadTokens: 0, cacheCreationTokens: 0 },
        },
      };
    },
  };
}
