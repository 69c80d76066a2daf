/** Turn: one message or command, and all that follows of it. Runs once, like a Job. */
import { z } from 'zod';
import type { Kind } from './kind.ts';
import { conditions, duration, immutable, objectName, observedGeneration, text, time } from './shapes.ts';

export const turnSpec = z.object({
  workspace: objectName('The Workspace, of the same namespace.'),
  session: text('Turns of one session continue one conversation. Absent: main.', 63).min(1).optional(),
  message: text('What a person says; a model works on it until it has no further call to make.', 65_536)
    .min(1)
    .optional(),
  command: text('One command for `bash -c`, without a model.', 65_536).min(1).optional(),
  limits: z
    .object({
      steps: z
        .int()
        .min(1)
        .max(10_000)
        .meta({ description: 'Replies of the model at most; then Blocked, StepLimit.' })
        .optional(),
      commandTimeout: duration('For each command that does not ask for another.').optional(),
    })
    .meta({ description: "The class's ceilings win." })
    .optional(),
});

export const turnStatus = z.object({
  observedGeneration,
  conditions: conditions.optional(),
  phase: z
    .enum(['Pending', 'Queued', 'Running', 'NeedsContinuation', 'Completed', 'Blocked', 'Cancelled', 'Failed'])
    .optional(),
  reason: z.string().optional(),
  message: z.string().optional(),
  answer: z.string().meta({ description: "The model's last words, up to 4 KiB." }).optional(),
  answerBytes: z.int().meta({ description: 'Length of the whole answer.' }).optional(),
  exitCode: z.int().meta({ description: 'Of a command turn.' }).optional(),
  output: z.string().meta({ description: 'The end of what a command turn printed, up to 2 KiB.' }).optional(),
  steps: z.int().optional(),
  usage: z
    .object({ inputTokens: z.int(), outputTokens: z.int(), cacheReadTokens: z.int(), cacheCreationTokens: z.int() })
    .meta({ description: 'Tokens, as the provider counted them.' })
    .optional(),
  files: z
    .object({ created: z.int(), changed: z.int(), deleted: z.int(), paths: z.array(z.string()).max(20).optional() })
    .meta({ description: 'What its commands changed; the first 20 paths.' })
    .optional(),
  fromVersion: z.int().optional(),
  toVersion: z.int().optional(),
  sandbox: z.string().optional(),
  queuedAt: time('When it could have run first.').optional(),
  startedAt: time('When it began to run.').optional(),
  finishedAt: time('When it ended.').optional(),
});

export const TURN: Kind = {
  kind: 'Turn',
  plural: 'turns',
  singular: 'turn',
  shortNames: [],
  scope: 'Namespaced',
  description:
    'One message or one command in a Workspace. Turns of a Workspace run one at a time, in the order they were made.',
  example:
    'apiVersion: lathe.dev/v1alpha1\nkind: Turn\nmetadata: { name: fix-tests, namespace: team-a }\nspec: { workspace: billing, message: Make the failing tests pass. }\n',
  spec: turnSpec,
  status: turnStatus,
  columns: [
    { name: 'Workspace', type: 'string', path: '.spec.workspace' },
    { name: 'Phase', type: 'string', path: '.status.phase' },
    { name: 'Reason', type: 'string', path: '.status.reason' },
    { name: 'Exit', type: 'integer', path: '.status.exitCode' },
    { name: 'Steps', type: 'integer', path: '.status.steps' },
    { name: 'Age', type: 'date', path: '.metadata.creationTimestamp' },
    { name: 'Session', type: 'string', path: '.spec.session', wide: true },
    { name: 'From', type: 'integer', path: '.status.fromVersion', wide: true },
    { name: 'To', type: 'integer', path: '.status.toVersion', wide: true },
    { name: 'Message', type: 'string', path: '.status.message', wide: true },
  ],
  selectable: ['.spec.workspace', '.status.phase'],
  rules: [
    {
      rule: "self.metadata.name.size() <= 100 && !self.metadata.name.contains('.')",
      message: 'the name of a Turn has at most 100 characters and no dots',
    },
    { rule: 'has(self.spec.message) != has(self.spec.command)', message: 'a Turn has either a message or a command' },
    { ...immutable('the spec of a Turn'), rule: 'self.spec == oldSelf.spec' },
  ],
};
