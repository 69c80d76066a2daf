/**
 * One `git` at a time, as a child that reads no configuration but what it is given here, talks to one host at the
 * addresses that were checked, asks nobody, runs no hook, and is bounded in memory, file size and time.
 */
import { spawn } from 'node:child_process';
import { mkdir, writeFile } from 'node:fs/promises';
import { isIP } from 'node:net';
import { join } from 'node:path';
import { getCACertificates } from 'node:tls';
import { redact } from './redact.ts';

export type GitRemote = Readonly<{
  scheme: 'https' | 'http' | 'ssh';
  host: string;
  port: number;
  user?: string;
  /** Checked; nothing else is connected to. */
  addresses: readonly string[];
}>;
export type GitCredential = Readonly<
  | { kind: 'none' }
  | { kind: 'password'; username: string; password: string }
  | { kind: 'key'; privateKey: Buffer; knownHosts: Buffer }
>;
export type GitResult = Readonly<{ code: number; stdout: string; said: string }>;
export type Git = Readonly<{
  /** @returns whatever its exit code is. Aborted: the whole group of processes is gone when this rejects */
  run(args: readonly string[], signal: AbortSignal): Promise<GitResult>;
}>;

/** Address space of each process, in KiB: a hostile pack then ends git, not this replica. */
const MEMORY_KIB = 512 * 1024;
const STDOUT_BYTES = 1024 * 1024;
const STDERR_BYTES = 16 * 1024;

/** @param folder private and empty; the credential's files are in it, the repository is not */
export async function prepareGit(
  folder: string,
  remote: GitRemote,
  credential: GitCredential,
  options: Readonly<{ maxFileBytes: number; certificates?: readonly string[] }>,
): Promise<Git> {
  const home = join(folder, 'home');
  await mkdir(home, { mode: 0o700 });
  const secrets: string[] = [];
  const own: Record<string, string> = {};
  if (credential.kind === 'password') {
    const { username, password } = credential;
    secrets.push(password, `${username}:${password}`);
    own['LATHE_GIT_USERNAME'] = username;
    own['LATHE_GIT_PASSWORD'] = password;
    own['GIT_ASKPASS'] = await placed('askpass', ASKPASS, 0o700);
  }
  if (credential.kind === 'key') secrets.push(credential.privateKey.toString('utf8'));
  if (remote.scheme === 'ssh') own['GIT_SSH'] = await sshProgram(credential);
  const certificates =
    remote.scheme === 'https'
      ? await placed('certificates.pem', (options.certificates ?? getCACertificates('default')).join('\n'), 0o600)
      : undefined;
  const env = {
    PATH: process.env['PATH'] ?? '/usr/bin:/bin',
    HOME: home,
    TMPDIR: home,
    LC_ALL: 'C',
    MALLOC_ARENA_MAX: '1',
    GIT_ALLOW_PROTOCOL: remote.scheme,
    GIT_ATTR_NOSYSTEM: '1',
    GIT_CONFIG_GLOBAL: '/dev/null',
    GIT_CONFIG_NOSYSTEM: '1',
    GIT_SSH_VARIANT: 'ssh',
    GIT_TERMINAL_PROMPT: '0',
    ...configured({
      'core.askPass': own['GIT_ASKPASS'] ?? '/bin/false',
      // Larger objects are written as they come and never held whole.
      'core.bigFileThreshold': '16m',
      'core.fsmonitor': 'false',
      'core.hooksPath': '/dev/null',
      'core.packedGitLimit': '128m',
      'core.packedGitWindowSize': '16m',
      'core.preloadIndex': 'false',
      'core.symlinks': 'true',
      'checkout.workers': '1',
      'advice.detachedHead': 'false',
      'credential.helper': '',
      'fetch.recurseSubmodules': 'false',
      'gc.auto': '0',
      'index.threads': '1',
      'maintenance.auto': 'false',
      'pack.threads': '1',
      'submodule.recurse': 'false',
      'transfer.bundleURI': 'false',
      'http.followRedirects': 'false',
      'http.lowSpeedLimit': '100',
      'http.lowSpeedTime': '60',
      'http.proxy': '',
      'http.sslVerify': 'true',
      ...(isIP(remote.host) === 0
        ? { 'http.curloptResolve': `${remote.host}:${remote.port}:${remote.addresses.join(',')}` }
        : {}),
      ...(certificates === undefined ? {} : { 'http.sslCAInfo': certificates }),
    }),
    ...own,
  };
  const limits = `ulimit -v ${MEMORY_KIB}; ulimit -f ${Math.ceil(options.maxFileBytes / 512)}; ulimit -c 0; exec git "$@"`;
  return { run: (args, signal) => run(['/bin/sh', '-c', limits, 'git', ...args], env, folder, secrets, signal) };

  async function placed(name: string, content: string | Buffer, mode: number): Promise<string> {
    const path = join(folder, name);
    await writeFile(path, content, { mode });
    return path;
  }

  /** A program and not a command line: nothing of it is read by a shell but the path of its configuration. */
  async function sshProgram(key: GitCredential): Promise<string> {
    const files =
      key.kind === 'key'
        ? [
            `IdentityFile ${await placed('identity', withNewline(key.privateKey), 0o600)}`,
            `UserKnownHostsFile ${await placed('known_hosts', key.knownHosts, 0o600)}`,
          ]
        : ['UserKnownHostsFile /dev/null'];
    const settings = await placed('ssh_config', `${[...SSH, ...files, ...pinned(remote)].join('\n')}\n`, 0o600);
    return await placed('ssh', `#!/bin/sh\nexec ssh -F '${settings}' "$@"\n`, 0o700);
  }
}

const ASKPASS = `#!/bin/sh
case "$1" in
  Username*) printf '%s\\n' "$LATHE_GIT_USERNAME" ;;
  *) printf '%s\\n' "$LATHE_GIT_PASSWORD" ;;
esac
`;

const SSH = [
  'Host *',
  'BatchMode yes',
  'CheckHostIP no',
  'ClearAllForwardings yes',
  'ConnectTimeout 15',
  'ForwardAgent no',
  'GlobalKnownHostsFile /dev/null',
  'IdentitiesOnly yes',
  'IdentityAgent none',
  'LogLevel ERROR',
  'PasswordAuthentication no',
  'KbdInteractiveAuthentication no',
  'PermitLocalCommand no',
  'ProxyCommand none',
  'ServerAliveCountMax 3',
  'ServerAliveInterval 15',
  'StrictHostKeyChecking yes',
  'UpdateHostKeys no',
];

/** To the address that was checked, under the name that known_hosts has. */
function pinned({ host, port, addresses }: GitRemote): readonly string[] {
  return [`HostName ${addresses[0] ?? host}`, `HostKeyAlias ${port === 22 ? host : `[${host}]:${port}`}`];
}

function withNewline(key: Buffer): Buffer {
  return key.at(-1) === 0x0a ? key : Buffer.concat([key, Buffer.from('\n')]);
}

function configured(settings: Readonly<Record<string, string>>): Record<string, string> {
  const entries = Object.entries(settings);
  return {
    GIT_CONFIG_COUNT: String(entries.length),
    ...Object.fromEntries(
      entries.flatMap(([key, value], i) => [
        [`GIT_CONFIG_KEY_${i}`, key],
        [`GIT_CONFIG_VALUE_${i}`, value],
      ]),
    ),
  };
}

function run(
  command: readonly [string, ...string[]],
  env: Readonly<Record<string, string>>,
  cwd: string,
  secrets: readonly string[],
  signal: AbortSignal,
): Promise<GitResult> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) return reject(signal.reason as Error);
    const [program, ...args] = command;
    // A group of its own: git's helpers end with it.
    const child = spawn(program, args, { cwd, env, detached: true, stdio: ['ignore', 'pipe', 'pipe'] });
    let stdout = Buffer.alloc(0);
    let stderr = Buffer.alloc(0);
    const kill = () => {
      if (child.pid === undefined) return;
      try {
        process.kill(-child.pid, 'SIGKILL');
      } catch {
        // It is gone already.
      }
    };
    child.stdout.on('data', (piece: Buffer) => {
      if (stdout.length + piece.length > STDOUT_BYTES) kill();
      else stdout = Buffer.concat([stdout, piece]);
    });
    child.stderr.on('data', (piece: Buffer) => (stderr = Buffer.concat([stderr, piece]).subarray(-STDERR_BYTES)));
    signal.addEventListener('abort', kill, { once: true });
    child.once('error', (error) => {
      signal.removeEventListener('abort', kill);
      reject(error);
    });
    child.once('close', (code, by) => {
      signal.removeEventListener('abort', kill);
      kill();
      if (signal.aborted) return reject(signal.reason as Error);
      const said = redact(stderr.toString('utf8').replaceAll(cwd, ''), secrets);
      const why = by === 'SIGXFSZ' ? 'a file became larger than files.maxTotalSize' : `git was ended by ${by ?? ''}`;
      const ended = by === null ? said : `${said === '' ? '' : `${said}; `}${why}`;
      resolve({ code: code ?? 128, stdout: stdout.toString('utf8'), said: ended });
    });
  });
}
