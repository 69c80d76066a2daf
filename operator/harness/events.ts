/** Every event that a turn is made of, by type and version. Old versions stay readable for ever. */
import { z } from 'zod';
import type { LogEvent } from '../store/rows.ts';
import { outcomeSchema } from '../sandboxes/outcome.ts';

const usage = z.object({
  inputTokens: z.int(),
  outputTokens: z.int(),
  cacheReadTokens: z.int(),
  cacheCreationTokens: z.int(),
});
/** Blocks of a reply as the provider gave them; kinds that we do not know are kept for the next request. */
const block = z.looseObject({ type: z.string() });
export type Block = z.infer<typeof block>;

const PAYLOADS = {
  'turn.started': z.object({
    message: z.string().optional(),
    command: z.string().optional(),
    model: z.string().optional(),
  }),
  'model.requested': z.object({ attempt: z.int(), model: z.string(), requestSha256: z.string() }),
  'model.replied': z.object({ blocks: z.array(block), stopReason: z.string(), usage }),
  'model.failed': z.object({
    attempt: z.int(),
    reason: z.string(),
    message: z.string(),
    permanent: z.boolean(),
    retryAfterMs: z.int().optional(),
  }),
  'execution.dispatched': z.object({ command: z.string(), timeoutMs: z.int(), toolUseId: z.string().optional() }),
  'execution.done': outcomeSchema,
  'tool.result': z.object({ toolUseId: z.string(), isError: z.boolean(), content: z.string() }),
  'files.committed': z.object({ origin: z.string() }),
  'turn.ended': z.object({
    phase: z.enum(['Completed', 'NeedsContinuation', 'Blocked', 'Cancelled', 'Failed']),
    reason: z.string(),
    message: z.string(),
  }),
} as const;
export type EventType = keyof typeof PAYLOADS;
export type PayloadOf<T extends EventType> = z.infer<(typeof PAYLOADS)[T]>;
export type TurnEvent = {
  [T in EventType]: Readonly<{ type: T; turn?: string; execution?: string; payload: PayloadOf<T> }>;
}[EventType];

/** Undefined: a type of another part of the program, or a later release; it says nothing about a turn. @throws ZodError on a payload that is not what its version promises */
export function parseEvent(event: LogEvent): TurnEvent | undefined {
  if (event.v !== 1 || !(event.type in PAYLOADS)) return undefined;
  const type = event.type as EventType;
  return {
    type,
    payload: PAYLOADS[type].parse(event.payload),
    turn: event.turn,
    execution: event.execution,
  } as TurnEvent;
}
