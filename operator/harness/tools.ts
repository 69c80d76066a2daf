/** The one built-in tool: one write path for everything (EX1). */
import { z } from 'zod';

export const bashInput = z.object({
  command: z.string().min(1).max(65_536),
  timeout_ms: z.int().min(1).max(1_800_000).optional(),
  description: z.string().max(1_024).optional(),
});

export type Tool = Readonly<{
  name: string;
  description: string;
  input_schema: Readonly<{ type: 'object'; properties: object; required: readonly string[] }>;
}>;

export const BASH: Tool = {
  name: 'Bash',
  description:
    'Runs a command with bash -c in /workspace and returns its output and exit code. Files in /workspace are kept between commands; processes are not.',
  input_schema: {
    type: 'object',
    properties: {
      command: { type: 'string', description: 'What to run.' },
      timeout_ms: { type: 'integer', description: 'Milliseconds until it is ended. Default 120000, at most 1800000.' },
      description: { type: 'string', description: 'What it is for, in a few words.' },
    },
    required: ['command'],
  },
};
