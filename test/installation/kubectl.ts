/** kubectl (and helm) as a person uses them, against one cluster. What they print on failure is in the error. */
import { spawn } from 'node:child_process';
import type { Cluster } from '../cluster/cluster.ts';

export type Tool = Readonly<{
  /** Standard output. @throws CommandFailed with what it printed on standard error */
  run(args: readonly string[], options?: Readonly<{ input?: string | Buffer }>, signal?: AbortSignal): Promise<string>;
  /** The same, parsed as JSON; the caller says what it expects. */
  json<T>(args: readonly string[], signal?: AbortSignal): Promise<T>;
  /** The whole command line, for people. */
  path: string;
}>;

export class CommandFailed extends Error {
  readonly code: number | null;
  readonly stderr: string;
  constructor(command: string, code: number | null, stderr: string) {
    super(`${command} ended with ${code}: ${stderr.trim().slice(-2000)}`);
    this.name = 'CommandFailed';
    this.code = code;
    this.stderr = stderr;
  }
}

export const kubectlOf = (cluster: Cluster): Tool => tool(cluster.kubectl, target(cluster, '--context'));
export const helmOf = (cluster: Cluster): Tool => tool(cluster.helm, target(cluster, '--kube-context'));

/** Arguments that make kubectl or helm speak to this cluster. */
function target(cluster: Cluster, contextFlag: string): readonly string[] {
  const context = cluster.context === undefined ? [] : [contextFlag, cluster.context];
  return ['--kubeconfig', cluster.kubeconfig, ...context];
}

function tool(path: string, common: readonly string[]): Tool {
  const run: Tool['run'] = (args, options = {}, signal) =>
    new Promise((resolve, reject) => {
      const child = spawn(path, [...common, ...args], {
        stdio: ['pipe', 'pipe', 'pipe'],
        ...(signal ? { signal } : {}),
      });
      let stdout = '';
      let stderr = '';
      child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text));
      child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
      child.once('error', reject);
      child.once('close', (code) => {
        if (code === 0) resolve(stdout);
        else
          reject(new CommandFailed(`${path.split('/').at(-1)} ${args.slice(0, 4).join(' ')}`, code, stderr || stdout));
      });
      // A command that ends without reading its input closes the pipe; its exit code says why.
      child.stdin.on('error', () => undefined);
      child.stdin.end(options.input);
    });
  return {
    path,
    run,
    json: async <T>(args: readonly string[], signal?: AbortSignal) =>
      JSON.parse(await run([...args, '-o', 'json'], {}, signal)) as T,
  };
}
