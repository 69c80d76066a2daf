/** One command line, from its words to its exit code. */
import { parseArgs, type ParseArgsOptionsConfig } from 'node:util';
import {
  ConflictError,
  createLathe,
  ForbiddenError,
  LatheError,
  NotFoundError,
  RefusedError,
  UnavailableError,
  type Lathe,
} from '../sdk/index.ts';
import { COMMANDS, type Command, type Flags } from './commands.ts';
import { completion } from './completion.ts';
import { createOutput, FORMATS, plain, type Format } from './output.ts';
import { UsageError } from './usage.ts';

export const EXIT_CODES = [
  [0, 'it was done'],
  [1, 'something else went wrong'],
  [2, 'the command line was not understood'],
  [3, 'not found'],
  [4, 'conflict: something else is there, or changed meanwhile'],
  [5, 'refused by a rule of the workspace'],
  [6, 'forbidden'],
  [7, 'nobody answered, or could; try again'],
  [130, 'interrupted'],
] as const;

export const COMMON_FLAGS = {
  namespace: { type: 'string', short: 'n', summary: 'Namespace of the Workspace' },
  context: { type: 'string', summary: 'Context of the kubeconfig' },
  kubeconfig: { type: 'string', summary: 'Path of the kubeconfig' },
  output: { type: 'string', short: 'o', summary: `One of ${FORMATS.join(', ')}` },
  server: { type: 'string', summary: 'Directly: URL of Service lathe-api, port 9443 (with --token, and --ca)' },
  token: { type: 'string', summary: 'Directly: a token of audience lathe.dev, or LATHE_TOKEN' },
  ca: { type: 'string', summary: 'Directly: PEM file of the authority' },
  help: { type: 'boolean', short: 'h', summary: 'What a command takes' },
} as const;

export type Streams = Readonly<{
  stdout: NodeJS.WriteStream | NodeJS.WritableStream;
  stderr: NodeJS.WriteStream | NodeJS.WritableStream;
  stdin: NodeJS.ReadableStream;
}>;

/** @returns the exit code. `connect` is for tests. */
export async function run(
  words: readonly string[],
  streams: Streams,
  signal: AbortSignal,
  connect: (flags: Flags) => Lathe | Promise<Lathe> = connectByFlags,
): Promise<number> {
  const say = (text: string) => void streams.stdout.write(text);
  const complain = (text: string) => void streams.stderr.write(text);
  try {
    const [name = 'help', ...rest] = words;
    if (name === 'help' || name === '--help' || name === '-h') {
      const about = COMMANDS.find((command) => command.name === rest[0]);
      say(about === undefined ? overview() : help(about));
      return 0;
    }
    if (name === 'completion') {
      say(completion(rest[0]));
      return 0;
    }
    const command = COMMANDS.find((c) => c.name === name);
    if (command === undefined) throw new UsageError(`there is no command ${JSON.stringify(name)}`);
    const { flags, args } = parse(command, rest);
    if (flags['help'] === true) {
      say(help(command));
      return 0;
    }
    if (args.length < command.args.min || args.length > command.args.max)
      throw new UsageError(`usage: kubectl lathe ${command.usage}`);
    const output = createOutput(formatOf(flags), streams.stdout as never, streams.stderr as never);
    const lathe = await connect(flags);
    try {
      await command.run(
        {
          lathe,
          workspace: (workspace) => lathe.workspace({ name: workspace, create: false, signal }),
          flags,
          output,
          signal,
          stdin: streams.stdin,
        },
        args,
      );
    } finally {
      output.done();
      await lathe[Symbol.asyncDispose]();
    }
    return 0;
  } catch (error) {
    if (signal.aborted) return 130;
    const message = error instanceof Error ? error.message : String(error);
    const reason = error instanceof LatheError ? ` (${error.reason})` : '';
    complain(`error: ${plain(message)}${reason}\n`);
    if (error instanceof UsageError) complain('next: kubectl lathe help\n');
    return exitCodeOf(error);
  }
}

export function exitCodeOf(error: unknown): number {
  if (error instanceof UsageError) return 2;
  if (error instanceof NotFoundError) return 3;
  if (error instanceof ConflictError) return 4;
  if (error instanceof RefusedError) return 5;
  if (error instanceof ForbiddenError) return 6;
  if (error instanceof UnavailableError) return 7;
  return 1;
}

function parse(command: Command, words: readonly string[]): { flags: Flags; args: readonly string[] } {
  const options: ParseArgsOptionsConfig = {};
  for (const [name, flag] of Object.entries({ ...COMMON_FLAGS, ...command.flags }))
    options[name] = { type: flag.type, ...('short' in flag && flag.short !== undefined ? { short: flag.short } : {}) };
  try {
    const { values, positionals } = parseArgs({ args: [...words], options, allowPositionals: true });
    return { flags: values as Flags, args: positionals };
  } catch (error) {
    throw new UsageError(error instanceof Error ? error.message : String(error));
  }
}

function formatOf(flags: Flags): Format {
  const given = flags['output'] ?? 'table';
  const format = FORMATS.find((f) => f === given);
  if (format === undefined) throw new UsageError(`-o is one of ${FORMATS.join(', ')}`);
  return format;
}

async function connectByFlags(flags: Flags): Promise<Lathe> {
  const text = (name: string) => (typeof flags[name] === 'string' ? flags[name] : undefined);
  const namespace = text('namespace');
  const inNamespace = namespace === undefined ? {} : { namespace };
  const url = text('server');
  if (url !== undefined) {
    const token = text('token') ?? process.env['LATHE_TOKEN'];
    if (token === undefined) throw new UsageError('--server needs --token, or LATHE_TOKEN');
    const ca = text('ca');
    const { readFile } = await import('node:fs/promises');
    return createLathe({ url, token, ...inNamespace, ...(ca === undefined ? {} : { ca: await readFile(ca) }) });
  }
  const [kubeconfig, context] = [text('kubeconfig'), text('context')];
  return createLathe({
    ...inNamespace,
    ...(kubeconfig === undefined ? {} : { kubeconfig }),
    ...(context === undefined ? {} : { context }),
  });
}

function overview(): string {
  const width = Math.max(...COMMANDS.map(({ usage }) => usage.length));
  const lines = COMMANDS.map(({ usage, summary }) => `  ${usage.padEnd(width)}  ${summary}`);
  return `Files of Lathe's workspaces, without any pod.

${lines.join('\n')}
  ${'completion bash|zsh|fish'.padEnd(width)}  Completion for a shell
  ${'help [COMMAND]'.padEnd(width)}  What a command takes

Flags of every command:
${flagLines(COMMON_FLAGS)}

Exit codes: ${EXIT_CODES.map(([code, what]) => `${code} ${what}`).join('; ')}.
`;
}

function help({ usage, summary, details, flags = {} }: Command): string {
  const own = Object.keys(flags).length === 0 ? '' : `\nFlags:\n${flagLines(flags)}\n`;
  return `usage: kubectl lathe ${usage}\n\n${summary}.${details === undefined ? '' : ` ${details}`}\n${own}\nFlags of every command: kubectl lathe help\n`;
}

function flagLines(flags: NonNullable<Command['flags']>): string {
  const left = Object.entries(flags).map(([name, flag]) => [
    `${flag.short === undefined ? '    ' : `-${flag.short}, `}--${name}${flag.type === 'string' ? ' VALUE' : ''}`,
    flag.summary,
  ]);
  const width = Math.max(...left.map(([text = '']) => text.length));
  return left.map(([text = '', summary = '']) => `  ${text.padEnd(width)}  ${summary}`).join('\n');
}
