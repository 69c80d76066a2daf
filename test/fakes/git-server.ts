/** Real Git servers on loopback: git's own smart HTTP behind basic authentication, and git over ssh. */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { createServer as createHttp, type IncomingMessage, type ServerResponse } from 'node:http';
import { createServer as createHttps } from 'node:https';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import ssh2 from 'ssh2';

export type GitServer = AsyncDisposable &
  Readonly<{
    port: number;
    /** What was asked for, with the user that it was asked as. */
    asked: readonly string[];
    /** Answers everything with this instead; undefined: serves again. */
    answer(instead: Readonly<{ status: number; location?: string }> | undefined): void;
  }>;
export type Repository = AsyncDisposable &
  Readonly<{ folder: string; git(...args: readonly string[]): Promise<string> }>;

const execute = promisify(execFile);
const ENV = {
  PATH: process.env['PATH'],
  HOME: '/nonexistent',
  GIT_CONFIG_NOSYSTEM: '1',
  GIT_AUTHOR_NAME: 'a',
  GIT_AUTHOR_EMAIL: 'a@example.com',
  GIT_COMMITTER_NAME: 'a',
  GIT_COMMITTER_EMAIL: 'a@example.com',
};

/** An empty repository with a work tree, below a folder of its own; servers serve `repo/.git` of that folder. */
export async function makeRepository(): Promise<Repository> {
  const root = await mkdtemp(join(tmpdir(), 'lathe-repository-'));
  const folder = join(root, 'repo');
  await mkdir(folder);
  const git = async (...args: readonly string[]) =>
    (await execute('git', ['-C', folder, ...args], { env: ENV })).stdout.trim();
  await git('init', '--quiet', '--initial-branch=trunk');
  await git('config', 'http.receivepack', 'false');
  return { folder, git, [Symbol.asyncDispose]: () => rm(root, { recursive: true, force: true }) };
}

/** `/repo/.git` of the repository's folder. */
export async function startGitServer(
  folder: string,
  options: Readonly<{ user?: string; password?: string; tls?: { cert: string; key: string } }> = {},
): Promise<GitServer> {
  const asked: string[] = [];
  let instead: Readonly<{ status: number; location?: string }> | undefined;
  const wanted =
    options.password === undefined
      ? undefined
      : `Basic ${Buffer.from(`${options.user ?? ''}:${options.password}`).toString('base64')}`;
  const handle = (request: IncomingMessage, response: ServerResponse) => {
    const { authorization } = request.headers;
    const user =
      Buffer.from(authorization?.split(' ')[1] ?? '', 'base64')
        .toString()
        .split(':')[0] ?? '';
    asked.push(`${user}@${request.url ?? ''}`);
    if (instead !== undefined) {
      response.writeHead(instead.status, instead.location === undefined ? {} : { location: instead.location }).end();
    } else if (wanted !== undefined && authorization !== wanted) {
      response.writeHead(401, { 'www-authenticate': 'Basic realm="git"' }).end();
    } else serve(request, response, join(folder, '..'), user);
  };
  const server = options.tls === undefined ? createHttp(handle) : createHttps(options.tls, handle);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    asked,
    answer: (next) => (instead = next),
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

/** CGI, as a web server runs it. */
function serve(request: IncomingMessage, response: ServerResponse, root: string, user: string): void {
  const url = new URL(request.url ?? '/', 'http://localhost');
  const backend = spawn('git', ['http-backend'], {
    env: {
      ...ENV,
      GIT_PROJECT_ROOT: root,
      GIT_HTTP_EXPORT_ALL: '1',
      PATH_INFO: decodeURIComponent(url.pathname),
      QUERY_STRING: url.search.slice(1),
      REQUEST_METHOD: request.method ?? 'GET',
      CONTENT_TYPE: request.headers['content-type'] ?? '',
      HTTP_CONTENT_ENCODING: request.headers['content-encoding'] ?? '',
      GIT_PROTOCOL: String(request.headers['git-protocol'] ?? ''),
      REMOTE_USER: user,
    },
    stdio: ['pipe', 'pipe', 'ignore'],
  });
  request.pipe(backend.stdin);
  backend.stdin.on('error', () => undefined);
  let head = Buffer.alloc(0);
  let started = false;
  backend.stdout.on('data', (piece: Buffer) => {
    if (started) return void response.write(piece);
    head = Buffer.concat([head, piece]);
    const end = head.indexOf('\r\n\r\n');
    if (end < 0) return;
    started = true;
    const headers = head
      .subarray(0, end)
      .toString()
      .split('\r\n')
      .map((line) => line.split(': ') as [string, string]);
    const status = headers.find(([name]) => name === 'Status')?.[1];
    response.writeHead(
      Number(status?.split(' ')[0] ?? 200),
      Object.fromEntries(headers.filter(([n]) => n !== 'Status')),
    );
    response.write(head.subarray(end + 4));
  });
  backend.once('close', () => response.end());
}

export type SshServer = AsyncDisposable & Readonly<{ port: number; /** As known_hosts has it. */ publicKey: string }>;
export type KeyPair = Readonly<{ privateKey: string; publicKey: string }>;

export function newKeyPair(): KeyPair {
  const { private: privateKey, public: publicKey } = ssh2.utils.generateKeyPairSync('ed25519');
  return { privateKey, publicKey };
}

/** Serves `git upload-pack` of what is below `root` to whoever has the key, and nothing else. */
export async function startSshServer(root: string, allowed: KeyPair): Promise<SshServer> {
  const host = newKeyPair();
  const key = ssh2.utils.parseKey(allowed.publicKey);
  if (key instanceof Error) throw key;
  const isAllowed = (data: Buffer) => data.equals((Array.isArray(key) ? key[0] : key).getPublicSSH());
  const server = new ssh2.Server({ hostKeys: [host.privateKey] }, (client) => {
    client.on('error', () => undefined);
    client.on('authentication', (context) => {
      if (context.method === 'publickey' && isAllowed(context.key.data)) context.accept();
      else context.reject(['publickey']);
    });
    client.on('session', (accept) => {
      const session = accept();
      session.on('env', (acceptEnv) => acceptEnv?.());
      session.on('exec', (acceptExec, _reject, { command }) => {
        const stream = acceptExec();
        const path = /^git-upload-pack '\/([a-z/.]+)'$/.exec(command)?.[1] ?? 'nothing';
        const git = spawn('git', ['upload-pack', join(root, path)], { env: ENV });
        stream.pipe(git.stdin);
        git.stdin.on('error', () => undefined);
        git.stdout.pipe(stream, { end: false });
        git.stderr.pipe(stream.stderr, { end: false });
        git.once('close', (code) => {
          stream.exit(code ?? 1);
          stream.end();
        });
      });
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    publicKey: host.publicKey,
    [Symbol.asyncDispose]: () => new Promise<void>((resolve) => server.close(() => resolve())),
  };
}
