/** How an execution ended, as the log has it (event `execution.done`, v1). */
import { z } from 'zod';

const counts = z.object({ created: z.int(), changed: z.int(), deleted: z.int(), paths: z.array(z.string()) });

export const outcomeSchema = z.object({
  /** `unknown`: it was sent and how it ended can't be known; it is never run again by itself. */
  state: z.enum(['done', 'unknown']),
  exitCode: z.int().optional(),
  signal: z.string().optional(),
  timedOut: z.boolean(),
  cancelled: z.boolean(),
  outOfMemory: z.boolean(),
  outputBytes: z.int(),
  droppedBytes: z.int(),
  outputSha256: z.string().optional(),
  /** What the model sees; together at most 32 KiB. */
  head: z.string(),
  tail: z.string(),
  omittedBytes: z.int(),
  files: counts,
  /** Put back in the sandbox, and told. */
  refused: z.array(z.object({ path: z.string(), reason: z.string(), message: z.string() })),
  conflicts: z.array(z.string()).optional(),
  fromVersion: z.int().optional(),
  toVersion: z.int().optional(),
  runMs: z.int(),
  /** Comparing the tree afterwards. */
  collectMs: z.int().optional(),
  /** Of `unknown`, or of a command that could not start. */
  reason: z.string().optional(),
  message: z.string().optional(),
});
export type Outcome = z.infer<typeof outcomeSchema>;

/** Nothing is known of it but why. */
export function unknownOutcome(
  reason: string,
  message: string,
  output: Pick<Outcome, 'head' | 'tail' | 'omittedBytes' | 'outputBytes'>,
): Outcome {
  return {
    state: 'unknown',
    timedOut: false,
    cancelled: false,
    outOfMemory: reason === 'OutOfMemory',
    droppedBytes: 0,
    files: { created: 0, changed: 0, deleted: 0, paths: [] },
    refused: [],
    runMs: 0,
    reason,
    message,
    ...output,
  };
}
