/** One program that is expected to end well; what it printed is in the error when it does not. */
import { spawn } from 'node:child_process';

export type RunOptions = Readonly<{ cwd?: string; env?: Readonly<Record<string, string>>; input?: string }>;

/** Standard output. @throws Error with the command and the last of what it printed */
export function run(
  command: readonly [string, ...string[]],
  signal: AbortSignal,
  options: RunOptions = {},
): Promise<string> {
  const [program, ...args] = command;
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, {
      stdio: ['pipe', 'pipe', 'pipe'],
      signal,
      ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
      env: { ...process.env, ...options.env },
    });
    const stdout: Buffer[] = [];
    let stderr = '';
    child.stdout.on('data', (bytes: Buffer) => stdout.push(bytes));
    child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr = shortened(stderr + text, 16_000)));
    child.once('error', (cause) => reject(new Error(`${program} could not run: ${cause.message}`, { cause })));
    child.once('close', (code, killedBy) => {
      const output = Buffer.concat(stdout).toString('utf8');
      if (code === 0) resolve(output);
      else
        reject(
          new Error(
            `${command.slice(0, 6).join(' ')} ended with ${code ?? killedBy}:\n${shortened((stderr || output).trim())}`,
          ),
        );
    });
    child.stdin.on('error', () => undefined);
    child.stdin.end(options.input);
  });
}

/** The cause stands at the beginning as often as at the end. */
function shortened(text: string, max = 3_000): string {
  return text.length <= max ? text : `${text.slice(0, max / 2)}\n[…]\n${text.slice(-max / 2)}`;
}
