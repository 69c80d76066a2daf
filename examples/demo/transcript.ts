/** Shows a turn while it happens: model text as it comes, each command, its output, what it changed, the ending. */
import { z } from 'zod';
import type { FollowResponse, TurnsServiceClient } from '../../proto/gen/lathe/turns/v1/turns.ts';

export type Ending = Readonly<{
  phase: string;
  reason: string;
  exitCode?: number;
  /** What the last command printed, as the model would see it. */
  output: string;
  files: Readonly<{ created: number; changed: number; deleted: number }>;
}>;
type Where = Readonly<{ namespace: string; workspace: string; turn: string }>;
type Style = (text: string, code: number) => string;

const counts = z.object({ created: z.number(), changed: z.number(), deleted: z.number() });
const executionDone = z.object({
  state: z.string(),
  exitCode: z.number().optional(),
  head: z.string().optional(),
  tail: z.string().optional(),
  runMs: z.number().optional(),
  files: counts.optional(),
  refused: z.array(z.object({ path: z.string(), reason: z.string(), message: z.string() })).optional(),
});
const turnEnded = z.object({ phase: z.string(), reason: z.string(), message: z.string().optional() });
const modelReplied = z.object({ blocks: z.array(z.looseObject({ text: z.string().optional() })) });
const dispatched = z.object({ command: z.string() });

/** Reads the log from its beginning and goes on live; resolves when the turn has ended. Leaving early cancels nothing. */
export async function followTurn(
  client: TurnsServiceClient,
  where: Where,
  write: (text: string) => void,
  options: Readonly<{ colour: boolean }>,
  signal: AbortSignal,
): Promise<Ending> {
  const style: Style = options.colour ? (text, code) => `\u001B[${code}m${text}\u001B[0m` : (text) => text;
  const files = { created: 0, changed: 0, deleted: 0 };
  let exitCode: number | undefined;
  let output = '';
  let atLineStart = true;
  // What came live: a follower that came late was not told its beginning, and the log has it all.
  let said = '';
  let printed = '';
  const put = (text: string) => {
    if (text === '') return;
    write(text);
    atLineStart = text.endsWith('\n');
  };
  const line = (text: string) => put(`${atLineStart ? '' : '\n'}${text}\n`);

  for await (const message of read(client, where, signal)) {
    if (message.$case === 'delta') {
      const { kind, text } = message.value;
      if (kind === 'text') said += text;
      else printed += text;
      put(kind === 'text' ? text : style(escapeControl(text), 2));
      continue;
    }
    if (message.$case !== 'event') throw new Error('another replica owns the workspace; run the demo again');
    const { type, payloadJson } = message.value;
    const payload: unknown = JSON.parse(payloadJson);
    if (type === 'execution.dispatched') line(style(`$ ${dispatched.parse(payload).command.trimEnd()}`, 36));
    if (type === 'model.replied') {
      const text = modelReplied
        .parse(payload)
        .blocks.map((block) => block.text ?? '')
        .join('');
      if (text !== said && text !== '') line(text);
      said = '';
    }
    if (type === 'execution.done') {
      const done = executionDone.parse(payload);
      if (printed === '') put(style(escapeControl(`${done.head ?? ''}${done.tail ?? ''}`), 2));
      printed = '';
      exitCode = done.exitCode;
      output = `${done.head ?? ''}${done.tail ?? ''}`;
      for (const kind of ['created', 'changed', 'deleted'] as const) files[kind] += done.files?.[kind] ?? 0;
      line(style(summary(done), done.exitCode === 0 ? 32 : 33));
    }
    if (type === 'turn.ended') {
      const { phase, reason, message: why } = turnEnded.parse(payload);
      line(style(`${phase} (${reason})${why ? `: ${why}` : ''}`, 1));
      return { phase, reason, output, files, ...(exitCode === undefined ? {} : { exitCode }) };
    }
  }
  throw new Error(
    `the log of turn ${where.turn} ended before the turn did; look with: kubectl describe turn ${where.turn}`,
  );
}

function summary(done: z.infer<typeof executionDone>): string {
  const changed = done.files === undefined ? [] : Object.entries(done.files).filter(([, n]) => n > 0);
  const refused = done.refused ?? [];
  return [
    `└ ${done.state === 'done' ? `exit ${done.exitCode ?? 'by signal'}` : 'outcome unknown'}`,
    ...(done.runMs === undefined ? [] : [`${done.runMs} ms`]),
    ...changed.map(([kind, n]) => `${n} ${kind}`),
    ...refused.map((r) => `${r.path} refused (${r.reason})`),
  ].join(', ');
}

/** A terminal must not obey what a sandbox printed. */
function escapeControl(text: string): string {
  // oxlint-disable-next-line no-control-regex -- control characters are what is looked for
  return text.replaceAll(/[\u0000-\u0008\u000B-\u001F\u007F-\u009F\u200B-\u200F\u202A-\u202E\u2066-\u2069]/g, '�');
}

async function* read(
  client: TurnsServiceClient,
  where: Where,
  signal: AbortSignal,
): AsyncIterable<NonNullable<FollowResponse['message']>> {
  const call = client.follow({
    workspace: { namespace: where.namespace, name: where.workspace },
    after: 0n,
    session: '',
    turn: where.turn,
    follow: true,
  });
  const cancel = () => call.cancel();
  signal.addEventListener('abort', cancel, { once: true });
  try {
    for await (const response of call as AsyncIterable<FollowResponse>) {
      if (response.message !== undefined) yield response.message;
    }
  } finally {
    signal.removeEventListener('abort', cancel);
    call.cancel();
  }
}
