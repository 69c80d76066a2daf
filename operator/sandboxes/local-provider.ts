/**
 * Sandboxes as plain processes on this machine, for developing the harness: the real broker and guest, isolating
 * nothing. `assertIsolation` refuses it to every model but scripted ones.
 */
import { randomBytes } from 'node:crypto';
import { spawn, type ChildProcess } from 'node:child_process';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { ControlStore } from '../store/control-store.ts';
import { newId } from '../store/ids.ts';
import type { WorkspaceRow } from '../store/rows.ts';
import type { Authenticate } from './attach-server.ts';
import type { SandboxProvider } from './provider.ts';

export type LocalOptions = Readonly<{
  /** Below it each sandbox has a folder. */
  folder: string;
  /** `host:port` of the attach server, known once it listens. */
  address: () => string;
  tlsName: string;
  ca: Buffer;
  control: ControlStore;
  /** Words before the guest's command, to give it a PID namespace of its own where that can be had. */
  guestPrefix?: readonly string[];
}>;
export type LocalSandbox = { broker: ChildProcess; guest: ChildProcess; folder: string; token: string };
export type LocalProvider = SandboxProvider &
  Readonly<{
    authenticate: Authenticate;
    sandboxes: ReadonlyMap<string, LocalSandbox>;
    restart(workspace: string, which: 'broker' | 'guest'): void;
    /** What a new pod is: another token, another disk for the broker. */
    replace(workspace: WorkspaceRow): Promise<void>;
  }>;

const entry = (name: string) => fileURLToPath(new URL(`../../agent-runtime/${name}/main.ts`, import.meta.url));

export function localProvider(options: LocalOptions): LocalProvider {
  const sandboxes = new Map<string, LocalSandbox>();
  const pods = new Map<string, string>();
  const starts = new Map<string, { broker: () => ChildProcess; guest: () => ChildProcess }>();
  let closed = false;

  async function make(workspace: WorkspaceRow): Promise<void> {
    const token = randomBytes(32).toString('hex');
    const podUid = newId();
    const folder = join(options.folder, workspace.id);
    for (const name of ['workspace', 'state', 'home']) await mkdir(join(folder, name), { recursive: true });
    await writeFile(join(folder, 'token'), token, { mode: 0o600 });
    const row = await options.control.ensureSandbox(workspace.id, {
      uid: `local-${workspace.id}`,
      name: workspace.name,
      operatingMode: 'Running',
      demand: true,
    });
    await options.control.setPod(row.id, { seq: row.pod_seq + 1, name: `local-${workspace.name}`, uid: podUid });
    pods.set(token, podUid);
    const socket = join(folder, 'guest.sock');
    const pathOnly = { PATH: process.env['PATH'] ?? '/usr/bin:/bin' };
    const start = (command: readonly string[], env: Record<string, string>) => {
      const [program, ...args] = command;
      return spawn(program ?? process.execPath, args, {
        stdio: ['ignore', 'inherit', 'inherit'],
        env: { ...pathOnly, ...env },
      });
    };
    const broker = () =>
      start([process.execPath, entry('broker')], {
        LATHE_SANDBOX: row.id,
        LATHE_STATE_DIR: join(folder, 'state'),
        LATHE_SOCKET: socket,
        LATHE_TURNS_ADDRESS: options.address(),
        LATHE_TURNS_TLS_NAME: options.tlsName,
        LATHE_TURNS_CA: options.ca.toString('utf8'),
        LATHE_TOKEN_FILE: join(folder, 'token'),
      });
    const guest = () =>
      start([...(options.guestPrefix ?? []), process.execPath, entry('guest')], {
        LATHE_SOCKET: socket,
        LATHE_WORKSPACE_DIR: join(folder, 'workspace'),
        LATHE_PROCESS_SCOPE: options.guestPrefix === undefined ? 'descendants' : 'pid-namespace',
        HOME: join(folder, 'home'),
      });
    starts.set(workspace.id, { broker, guest });
    sandboxes.set(workspace.id, { broker: broker(), guest: guest(), folder, token });
  }

  return {
    name: 'Local',
    isolates: false,
    sandboxes,
    authenticate: async (token) => {
      const podUid = pods.get(token);
      return podUid === undefined ? undefined : { podUid };
    },
    ensure: async (workspace) => {
      if (!sandboxes.has(workspace.id) && !closed) await make(workspace);
    },
    restart: (workspace, which) => {
      const sandbox = sandboxes.get(workspace);
      const start = starts.get(workspace);
      if (sandbox !== undefined && start !== undefined) sandbox[which] = start[which]();
    },
    replace: async (workspace) => {
      await rm(join(options.folder, workspace.id, 'state'), { recursive: true, force: true });
      await make(workspace);
    },
    close: async () => {
      closed = true;
      for (const { broker, guest } of sandboxes.values()) {
        broker.kill('SIGKILL');
        guest.kill('SIGKILL');
      }
      sandboxes.clear();
    },
  };
}
