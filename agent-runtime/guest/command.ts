/** Runs one command to its end, and everything that it started with it. */
import { spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { OutputStream, type Dispatch, type Finished } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { OutputBuffer } from './output.ts';
import { endAll, ownedProcesses, signalAll, type Mark, type Scope } from './processes.ts';

export type CommandPlace = Readonly<{ root: string; home: string; path: string; scope: Scope }>;
export type Running = Readonly<{
  output: OutputBuffer;
  finished: Promise<Omit<Finished, 'execution' | 'collectMs' | 'syncMs'>>;
  cancel(): void;
}>;

const MARK = 'LATHE_EXECUTION';
/** How long output may go on after every process has ended: what is left in two socket buffers. */
const DRAIN_MS = 2_000;

/** The plain environment of every command (docs/guides/commands.md); what the workspace adds comes after it. */
export function environment(place: CommandPlace, added: Readonly<Record<string, string>>): Record<string, string> {
  return {
    LANG: 'C.UTF-8',
    CI: '1',
    TERM: 'dumb',
    ...added,
    PATH: added['PATH'] ?? place.path,
    HOME: place.home,
    PWD: place.root,
  };
}

/** Ours where the image has no bash; `sh` as the last resort, whose syntax is less. */
export function shell(): string | undefined {
  return ['/bin/bash', '/usr/bin/bash', '/usr/local/bin/bash', '/lathe/bin/bash', '/bin/sh'].find((path) =>
    existsSync(path),
  );
}

export function startCommand(
  dispatch: Dispatch,
  place: CommandPlace,
  send: ConstructorParameters<typeof OutputBuffer>[1],
): Running {
  const output = new OutputBuffer(
    { execution: dispatch.execution, credit: dispatch.outputCredit, limit: dispatch.outputLimit },
    send,
  );
  let stop: (why: 'timedOut' | 'cancelled') => void = () => undefined;
  const finished = run();
  return { output, finished, cancel: () => stop('cancelled') };

  async function run(): Promise<Omit<Finished, 'execution' | 'collectMs' | 'syncMs'>> {
    const program = shell();
    const nothing = {
      signal: '',
      timedOut: false,
      cancelled: false,
      outOfMemory: false,
      outputBytes: 0n,
      droppedBytes: 0n,
      runMs: 0,
      peakMemoryBytes: 0n,
      cpuUs: 0n,
      reaped: 0,
      error: '',
    };
    if (program === undefined) return { ...nothing, error: 'the image has no shell, and the runtime none to lend' };
    const oomBefore = oomKills();
    const env = environment(place, dispatch.env);
    if (place.scope === 'descendants') env[MARK] = dispatch.execution;
    const withInput = dispatch.stdin.length > 0;
    const child = spawn(program, ['-c', dispatch.command], {
      cwd: place.root,
      env,
      detached: true,
      stdio: [withInput ? 'pipe' : 'ignore', 'pipe', 'pipe'],
    });
    const began = performance.now();
    const mark: Mark | undefined =
      child.pid === undefined ? undefined : { name: MARK, value: dispatch.execution, session: child.pid };
    if (withInput) {
      child.stdin?.on('error', () => undefined);
      child.stdin?.end(dispatch.stdin);
    }
    const streams = [
      ...(child.stdout ? [output.read(child.stdout, OutputStream.OUTPUT_STREAM_STDOUT)] : []),
      ...(child.stderr ? [output.read(child.stderr, OutputStream.OUTPUT_STREAM_STDERR)] : []),
    ];

    let why: 'timedOut' | 'cancelled' | undefined;
    let killer: NodeJS.Timeout | undefined;
    stop = (reason) => {
      if (why !== undefined) return;
      why = reason;
      signalAll(ownedProcesses(place.scope, mark), 'SIGTERM');
      killer = setTimeout(() => void endAll(place.scope, mark), dispatch.graceMs);
    };
    const deadline = setTimeout(() => stop('timedOut'), dispatch.timeoutMs);
    // `exit`, not `close`: a background child that holds the pipes must not hold the call.
    const ended = await new Promise<{ code: number | null; by: string | null; error: string }>((resolve) => {
      child.once('exit', (code, by) => resolve({ code, by, error: '' }));
      child.once('error', (error) => resolve({ code: null, by: null, error: error.message }));
    });
    clearTimeout(deadline);
    clearTimeout(killer);
    const runMs = Math.round(performance.now() - began);
    const reaped = await endAll(place.scope, mark);
    let drainTimer: NodeJS.Timeout | undefined;
    // The clock runs only while there is credit to read with.
    const drained = new Promise<void>((resolve) => (drainTimer = setTimeout(resolve, DRAIN_MS)));
    await Promise.race([Promise.all(streams), output.sent < dispatch.outputCredit ? drained : Promise.all(streams)]);
    clearTimeout(drainTimer);
    return {
      ...nothing,
      ...(ended.code === null ? {} : { exitCode: ended.code }),
      signal: ended.by ?? '',
      timedOut: why === 'timedOut',
      cancelled: why === 'cancelled',
      outOfMemory: oomKills() > oomBefore,
      outputBytes: output.sent,
      droppedBytes: output.dropped,
      runMs,
      reaped: Math.max(0, reaped),
      error: reaped === -1 ? 'a process of the command would not end' : ended.error,
    };
  }
}

/** How many processes of this container the kernel killed for memory, as cgroup v2 or v1 counts them. */
function oomKills(): number {
  for (const path of ['/sys/fs/cgroup/memory.events', '/sys/fs/cgroup/memory/memory.oom_control']) {
    try {
      return Number(/^oom_kill (\d+)$/m.exec(readFileSync(path, 'utf8'))?.[1] ?? 0);
    } catch {
      // The other version, or none that can be seen.
    }
  }
  return 0;
}
