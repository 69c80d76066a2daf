/** A real Postgres of our own for a test run: Debian's binaries, a folder that goes with it, fsync on. */
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { chown, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Client } from 'pg';
import { setTimeout as delay } from 'node:timers/promises';
import { run } from '../cluster/run.ts';

export type Postgres = AsyncDisposable &
  Readonly<{
    /** As superuser, of database `postgres`. */
    url: string;
    /** Stops it as a crash would (immediate), for tests of its absence. */
    stop(): Promise<void>;
    start(): Promise<void>;
  }>;

export async function startPostgres(): Promise<Postgres> {
  const bin = await binaries();
  const folder = await mkdtemp(join(tmpdir(), 'lathe-postgres-'));
  const data = join(folder, 'data');
  const user = process.getuid?.() === 0 ? await accountOf('postgres') : undefined;
  if (user !== undefined) await chown(folder, user.uid, user.gid);
  const signal = AbortSignal.timeout(60_000);
  const as = (
    user === undefined ? [] : ['setpriv', `--reuid=${user.uid}`, `--regid=${user.gid}`, '--clear-groups']
  ) as string[];
  const command = (program: string, ...args: string[]) => [...as, join(bin, program), ...args] as [string, ...string[]];
  await run(
    command('initdb', '-D', data, '-U', 'postgres', '--auth=trust', '--encoding=UTF8', '--locale=C.UTF-8'),
    signal,
    { cwd: folder },
  );
  const port = await freePort();
  const url = `postgres://postgres@127.0.0.1:${port}/postgres`;
  let child: ReturnType<typeof spawn> | undefined;

  const start = async () => {
    const [program, ...args] = command(
      'postgres',
      '-D',
      data,
      '-p',
      String(port),
      '-k',
      folder,
      '-h',
      '127.0.0.1',
      '-c',
      'max_connections=300',
    );
    child = spawn(program, args, { stdio: 'ignore', cwd: folder });
    for (const deadline = performance.now() + 30_000; !(await answers(url)); await delay(50)) {
      if (performance.now() > deadline) throw new Error('Postgres did not answer within 30 s');
    }
  };
  const stop = async () => {
    const running = child;
    if (running === undefined || running.exitCode !== null) return;
    const ended = new Promise((resolve) => running.once('exit', resolve));
    running.kill('SIGQUIT');
    await ended;
    child = undefined;
  };
  await start();
  return {
    url,
    start,
    stop,
    [Symbol.asyncDispose]: async () => {
      await stop();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

/** A database of its own, made from a template that was migrated once. */
export async function cloneDatabase(adminUrl: string, name: string, template: string): Promise<string> {
  await admin(adminUrl, `CREATE DATABASE ${name} TEMPLATE ${template}`);
  return urlOf(adminUrl, name);
}

export async function admin(adminUrl: string, sql: string): Promise<void> {
  const client = new Client({ connectionString: adminUrl });
  await client.connect();
  try {
    await client.query(sql);
  } finally {
    await client.end();
  }
}

export function urlOf(adminUrl: string, database: string): string {
  const url = new URL(adminUrl);
  url.pathname = `/${database}`;
  return url.href;
}

async function answers(url: string): Promise<boolean> {
  const client = new Client({ connectionString: url });
  client.on('error', () => undefined);
  return await client.connect().then(
    async () => {
      await client.end();
      return true;
    },
    () => false,
  );
}

async function binaries(): Promise<string> {
  const root = '/usr/lib/postgresql';
  const versions = existsSync(root) ? await readdir(root) : [];
  const newest = versions
    .map(Number)
    .filter((n) => existsSync(join(root, String(n), 'bin', 'initdb')))
    .toSorted((a, b) => b - a)[0];
  if (newest === undefined)
    throw new Error(
      'Postgres is not installed (no initdb below /usr/lib/postgresql); npm test installs it, or install the package postgresql',
    );
  return join(root, String(newest), 'bin');
}

async function accountOf(name: string): Promise<{ uid: number; gid: number }> {
  const line = (await readFile('/etc/passwd', 'utf8'))
    .split('\n')
    .find((l) => l.startsWith(`${name}:`))
    ?.split(':');
  if (line === undefined) throw new Error(`there is no account ${name}; the package postgresql makes it`);
  return { uid: Number(line[2]), gid: Number(line[3]) };
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer().once('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const address = server.address();
      server.close(() =>
        typeof address === 'object' && address !== null ? resolve(address.port) : reject(new Error('no port')),
      );
    });
  });
}
