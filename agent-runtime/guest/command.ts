/** Runs one command to its end, and everything that it started with it. */
import { spawn, type ChildProcess } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { OutputStream, type Dispatch, type Finished, type Output } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { OutputBuffer } from './output.ts';
import { endAll, ofMark, ofNamespace, type Processes } from './processes.ts';
import { environment, shell, shellArguments, type Place } from './shell.ts';

/** `pid-namespace`: whatever else runs here is the command's (the pod). `descendants`: what bears its mark. */
export type Scope = 'pid-namespace' | 'descendants';
export type CommandPlace = Place & Readonly<{ scope: Scope }>;
export type Ended = Omit<Finished, 'execution' | 'collectMs' | 'syncMs'>;
export type Running = Readonly<{
  output: OutputBuffer;
  /** Never rejects: what went wrong is in `error`. */
  finished: Promise<Ended>;
  cancel(): void;
  /** A process of it would not end, in a PID namespace that is ours to end. */
  escaped(): boolean;
}>;

const MARK = 'LATHE_EXECUTION';
/** How long output may go on after every process has ended, where one may have escaped that holds the streams. */
const DRAIN_MS = 2_000;
/** setTimeout takes no more; 24 days are more than any sandbox lives. */
const MAX_TIMER_MS = 0x7fffffff;
/** Of a command that never ran. */
export const NEVER_RAN: Ended = {
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

export function startCommand(dispatch: Dispatch, place: CommandPlace, send: (output: Output) => void): Running {
  const limits = { execution: dispatch.execution, credit: dispatch.outputCredit, limit: dispatch.outputLimit };
  const output = new OutputBuffer(limits, send);
  let child: ChildProcess;
  const oomBefore = oomKills();
  try {
    child = start(dispatch, place);
  } catch (error) {
    // A NUL in it, or an environment that is none.
    const finished = Promise.resolve({ ...NEVER_RAN, error: error instanceof Error ? error.message : String(error) });
    return { output, finished, cancel: () => undefined, escaped: () => false };
  }
  const began = performance.now();
  const processes: Processes =
    place.scope === 'pid-namespace'
      ? ofNamespace
      : ofMark({ name: MARK, value: dispatch.execution, session: child.pid ?? -1 });
  let why: 'timedOut' | 'cancelled' | undefined;
  let killer: NodeJS.Timeout | undefined;
  const stop = (reason: 'timedOut' | 'cancelled') => {
    if (why !== undefined) return;
    why = reason;
    processes.signal('SIGTERM');
    killer = setTimeout(() => processes.signal('SIGKILL'), dispatch.graceMs);
  };
  let escaped = false;
  return { output, finished: run(), cancel: () => stop('cancelled'), escaped: () => escaped };

  async function run(): Promise<Ended> {
    const streams = Promise.all([
      ...(child.stdout === null ? [] : [output.read(child.stdout, OutputStream.OUTPUT_STREAM_STDOUT)]),
      ...(child.stderr === null ? [] : [output.read(child.stderr, OutputStream.OUTPUT_STREAM_STDERR)]),
    ]);
    const deadline = setTimeout(() => stop('timedOut'), Math.min(dispatch.timeoutMs, MAX_TIMER_MS));
    // `exit`, not `close`: a background child that holds the pipes must not hold the call.
    const ended = await new Promise<{ code: number | null; by: string | null; error: string }>((resolve) => {
      child.once('exit', (code, by) => resolve({ code, by, error: '' }));
      child.once('error', (error) => resolve({ code: null, by: null, error: error.message }));
    });
    clearTimeout(deadline);
    clearTimeout(killer);
    const runMs = Math.round(performance.now() - began);
    const reaped = await endAll(processes);
    escaped = reaped === -1 && place.scope === 'pid-namespace';
    await drain(streams, reaped === -1 || place.scope === 'descendants');
    return {
      ...NEVER_RAN,
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

  /** To the end of both streams, which comes when nobody holds them any more. For as long as it takes to get credit. */
  async function drain(streams: Promise<unknown>, mayBeHeld: boolean): Promise<void> {
    for (;;) {
      const before = output.sent;
      let timer: NodeJS.Timeout | undefined;
      const waited = new Promise<'waited'>((resolve) => (timer = setTimeout(() => resolve('waited'), DRAIN_MS)));
      const first = await Promise.race([streams.then(() => 'closed' as const), waited]);
      clearTimeout(timer);
      if (first === 'closed') break;
      if (mayBeHeld && !output.blocked && output.sent === before) {
        child.stdout?.destroy();
        child.stderr?.destroy();
      }
    }
    output.flush();
    while (output.waiting) await output.credited();
  }
}

function start(dispatch: Dispatch, place: CommandPlace): ChildProcess {
  const program = shell();
  if (program === undefined) throw new Error('the image has no shell, and the runtime none to lend');
  const env = environment(place, dispatch.env);
  if (place.scope === 'descendants') env[MARK] = dispatch.execution;
  const withInput = dispatch.stdin.length > 0;
  const child = spawn(program, shellArguments(dispatch.command), {
    cwd: place.root,
    env,
    detached: true,
    stdio: [withInput ? 'pipe' : 'ignore', 'pipe', 'pipe'],
  });
  if (withInput) {
    // One that does not read all of it is no error.
    child.stdin?.on('error', () => undefined);
    child.stdin?.end(dispatch.stdin);
  }
  return child;
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
