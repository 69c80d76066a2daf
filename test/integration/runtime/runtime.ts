/** A real broker and a real guest as child processes, as the pod runs them: the guest alone in its PID namespace. */
import { spawn, type ChildProcess } from 'node:child_process';
import { chownSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { TLS_NAME, type FakeTurns } from './fake-turns.ts';

export const IS_ROOT = process.getuid?.() === 0;
const USER = 65_532;
const repository = join(import.meta.dirname, '../../..');
/** As in the pod (operator/controllers/pod.ts). */
const NODE_FLAGS = ['--max-old-space-size=128', '--max-semi-space-size=1'];

export type Runtime = AsyncDisposable &
  Readonly<{
    folder: string;
    tree: string;
    socket: string;
    start(which: 'broker' | 'guest'): void;
    /** SIGKILL, and gone when it resolves. */
    kill(which: 'broker' | 'guest'): Promise<void>;
    /** Most that it ever had in memory. */
    peakBytes(which: 'broker' | 'guest'): number;
    log(): string;
  }>;
export type RuntimeOptions = Readonly<{
  turns: FakeTurns;
  /** Without root's rights, as in the pod. */
  asUser?: boolean;
  guest?: boolean;
  env?: Readonly<Record<string, string>>;
}>;

export function startRuntime({ turns, asUser = false, guest = true, env = {} }: RuntimeOptions): Runtime {
  const folder = mkdtempSync(join(tmpdir(), 'lathe-runtime-'));
  const tree = join(folder, 'workspace');
  const socket = join(folder, 'guest.sock');
  for (const name of ['workspace', 'state', 'home']) mkdirSync(join(folder, name));
  writeFileSync(join(folder, 'token'), 'first');
  const drop = asUser && IS_ROOT ? ['setpriv', `--reuid=${USER}`, `--regid=${USER}`, '--clear-groups', '--'] : [];
  if (drop.length > 0)
    for (const name of ['.', 'workspace', 'state', 'home', 'token']) chownSync(join(folder, name), USER, USER);
  const namespace = IS_ROOT ? ['unshare', '--pid', '--fork', '--kill-child', '--mount-proc', '--'] : [];
  const init = IS_ROOT ? [process.execPath, join(repository, 'test/integration/sandboxes/init.mjs')] : [];
  const node = (which: string) => [process.execPath, ...NODE_FLAGS, join(repository, `agent-runtime/${which}/main.ts`)];
  const commands = {
    broker: [...drop, ...node('broker')],
    guest: [...namespace, ...drop, ...init, ...node('guest')],
  };
  const environments = {
    broker: {
      LATHE_SANDBOX: 'sandbox',
      LATHE_STATE_DIR: join(folder, 'state'),
      LATHE_SOCKET: socket,
      LATHE_TURNS_ADDRESS: `127.0.0.1:${turns.port}`,
      LATHE_TURNS_TLS_NAME: TLS_NAME,
      LATHE_TURNS_CA: turns.ca,
      LATHE_TOKEN_FILE: join(folder, 'token'),
    },
    guest: {
      LATHE_SOCKET: socket,
      LATHE_WORKSPACE_DIR: tree,
      LATHE_PROCESS_SCOPE: IS_ROOT ? 'pid-namespace' : 'descendants',
      HOME: join(folder, 'home'),
      ...env,
    },
  };
  const running = new Map<'broker' | 'guest', ChildProcess>();
  let said = '';
  const start = (which: 'broker' | 'guest') => {
    const [program = '', ...args] = commands[which];
    const child = spawn(program, args, {
      stdio: ['ignore', 'ignore', 'pipe'],
      env: { PATH: process.env['PATH'] ?? '/usr/bin:/bin', ...environments[which] },
    });
    child.stderr?.on('data', (text: Buffer) => (said = (said + text.toString()).slice(-20_000)));
    running.set(which, child);
  };
  const kill = async (which: 'broker' | 'guest') => {
    const child = running.get(which);
    running.delete(which);
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const gone = new Promise((resolve) => child.once('exit', resolve));
    child.kill('SIGKILL');
    await gone;
  };
  start('broker');
  if (guest) start('guest');
  return {
    folder,
    tree,
    socket,
    start,
    kill,
    peakBytes: (which) => Math.max(0, ...familyOf(running.get(which)?.pid).map(peakOf)),
    log: () => said,
    [Symbol.asyncDispose]: async () => {
      await kill('guest');
      await kill('broker');
      rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
    },
  };
}

/** A process and all below it that are ours: the guest is some levels deep. */
function familyOf(pid: number | undefined): number[] {
  if (pid === undefined) return [];
  const parents = new Map<number, number>();
  for (const name of readdirSync('/proc')) {
    const parent = /^PPid:\s*(\d+)$/m.exec(read(`/proc/${name}/status`))?.[1];
    if (/^\d+$/.test(name) && parent !== undefined) parents.set(Number(name), Number(parent));
  }
  const family = [pid];
  for (const member of family) for (const [child, parent] of parents) if (parent === member) family.push(child);
  return family;
}

function peakOf(pid: number): number {
  return Number(/^VmHWM:\s*(\d+) kB$/m.exec(read(`/proc/${pid}/status`))?.[1] ?? 0) * 1024;
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}
