/** A seed from a Git repository: asked over HTTP or TCP first, so that what fails there fails by code; then cloned. */
import { connect } from 'node:net';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { SeedSpec } from '../../../crds/types.ts';
import { PermanentError, TransientError } from '../../errors.ts';
import { assertScheme, get, refusedBy, targetOf } from './fetch.ts';
import { seedFromFolder, sizeOf } from './folder.ts';
import { prepareGit, type Git, type GitCredential, type GitRemote, type GitResult } from './git-command.ts';
import type { Origin, ReadTenantSecret, SeedDeps, SourceContext } from './source.ts';
import { limitsOf, withinDisk, type Limits } from './tree.ts';

type GitSpec = NonNullable<SeedSpec['git']>;
type Place = Omit<GitRemote, 'addresses'>;
type Wanted = Readonly<{ kind: 'branch' | 'tag' | 'commit'; name: string; commit: string } | { kind: 'nothing' }>;

const CONNECT_MS = 15_000;
const WATCH_MS = 500;
const COMMIT = /^([0-9a-f]{40}|[0-9a-f]{64})$/;

export async function seedFromGit(spec: GitSpec, context: SourceContext): Promise<Origin> {
  const { deps, workspace, folder, tree, progress, signal } = context;
  progress.phase = 'connecting';
  const place = placeOf(spec.url);
  if (place.scheme !== 'ssh') assertScheme(new URL(spec.url), deps.outbound);
  const credential = await credentialOf(spec, place, workspace.namespace, deps.readSecret);
  const remote: GitRemote = { ...place, addresses: await deps.outbound.resolve(place.host) };
  if (remote.scheme === 'ssh') await connects(remote, signal);
  else await answers(spec, credential, deps, signal);

  const limits = withinDisk(limitsOf(workspace.effective.files), deps.diskBytes);
  const own = join(folder, 'git');
  const clone = join(folder, 'tree');
  await mkdir(own, { mode: 0o700 });
  await mkdir(clone, { mode: 0o700 });
  const git = await prepareGit(own, remote, credential, {
    maxFileBytes: limits.totalBytes,
    ...(deps.certificates === undefined ? {} : { certificates: deps.certificates }),
  });
  const wanted = await wantedOf(spec, git, signal);
  progress.phase = 'cloning';
  await watched(
    clone,
    limits,
    (bytes) => (progress.bytes = bytes),
    signal,
    (within) => cloned(spec, wanted, git, clone, within),
  );
  delete progress.bytes;
  progress.phase = 'storing';
  await seedFromFolder(clone, tree, signal);
  return {
    git: {
      url: spec.url,
      ...(wanted.kind === 'nothing' ? {} : { ref: wanted.name, commit: wanted.commit }),
    },
  };
}

/** @throws PermanentError Forbidden */
export function placeOf(url: string): Place {
  const short = /^([A-Za-z0-9_][A-Za-z0-9._-]*)@([A-Za-z0-9][A-Za-z0-9.-]*):\S/.exec(url);
  if (short !== null) return { scheme: 'ssh', host: short[2] ?? '', port: 22, user: short[1] ?? '' };
  if (!URL.canParse(url)) throw new PermanentError('Forbidden', 'git.url is no URL');
  const { protocol, hostname, port, username, password } = new URL(url);
  const scheme = protocol.slice(0, -1);
  if (scheme !== 'https' && scheme !== 'http' && scheme !== 'ssh')
    throw new PermanentError('Forbidden', `git.url starts with ${protocol}//; https:// and ssh:// are fetched`);
  if (password !== '' || (scheme !== 'ssh' && username !== ''))
    throw new PermanentError('Forbidden', 'git.url has credentials in it; they belong into a Secret (git.secretName)');
  // What ssh gets as an argument, or reads in its settings.
  if (
    !/^(\[[0-9a-f:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]*)$/.test(hostname) ||
    !/^([A-Za-z0-9_][A-Za-z0-9._-]*)?$/.test(username)
  )
    throw new PermanentError(
      'Forbidden',
      'git.url has a host or a user of other characters than letters, digits, . and -',
    );
  const usual = { https: 443, http: 80, ssh: 22 }[scheme];
  return {
    scheme,
    host: hostname.replace(/^\[(.*)\]$/, '$1'),
    port: port === '' ? usual : Number(port),
    ...(username === '' ? {} : { user: username }),
  };
}

async function credentialOf(
  { secretName }: GitSpec,
  { scheme, host }: Place,
  namespace: string,
  readSecret: ReadTenantSecret,
): Promise<GitCredential> {
  if (secretName === undefined) {
    if (scheme !== 'ssh') return { kind: 'none' };
    throw new PermanentError(
      'Forbidden',
      'ssh needs git.secretName: a Secret with ssh-privatekey, and with known_hosts, because host keys are always checked',
    );
  }
  const { data, hosts } = await readSecret(namespace, secretName);
  if (hosts !== undefined && !hosts.includes(host))
    throw new PermanentError(
      'Forbidden',
      `Secret ${secretName} is for ${hosts.join(', ')} (annotation lathe.dev/hosts), not for ${host}`,
    );
  const value = (key: string): Buffer => {
    const found = data.get(key);
    if (found !== undefined && found.length > 0) return found;
    throw new TransientError('NotFound', `Secret ${secretName} has no key ${key}, which git over ${scheme} needs`);
  };
  if (scheme === 'ssh') return { kind: 'key', privateKey: value('ssh-privatekey'), knownHosts: value('known_hosts') };
  const line = (key: string) => value(key).toString('utf8').trim();
  return { kind: 'password', username: data.has('username') ? line('username') : 'git', password: line('password') };
}

/** As git's first request does: by its status it is known whether another try can help, and where a redirect leads. */
async function answers(spec: GitSpec, credential: GitCredential, deps: SeedDeps, signal: AbortSignal): Promise<void> {
  const url = new URL(`${spec.url.replace(/\/+$/, '')}/info/refs?service=git-upload-pack`);
  const headers: Record<string, string> = { 'git-protocol': 'version=2' };
  if (credential.kind === 'password')
    headers['authorization'] =
      `Basic ${Buffer.from(`${credential.username}:${credential.password}`).toString('base64')}`;
  const response = await get(url, headers, deps, signal);
  response.destroy();
  const status = response.statusCode ?? 0;
  if (status === 200) return;
  const { location } = response.headers;
  if (status >= 300 && status < 400 && location !== undefined) {
    const to = targetOf(location, url);
    // Its origin and path alone: a query may carry what is nobody's business.
    const shown = `${to.origin}${to.pathname.replace(/\/info\/refs$/, '')}`;
    throw new PermanentError(
      'Forbidden',
      `${url.host} redirects to ${shown}; redirects are not followed, name that URL`,
    );
  }
  if (status === 401 || status === 403)
    throw new PermanentError(
      'Forbidden',
      credential.kind === 'none'
        ? `${url.host} answers ${status}: it wants a credential; name a Secret in git.secretName`
        : `${url.host} answers ${status}: it refuses the credential of Secret ${spec.secretName ?? ''}`,
    );
  throw refusedBy(url.host, status);
}

/** Whether somebody listens; ssh itself would only say 255. */
function connects({ host, port, addresses }: GitRemote, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const fail = (error: Error & { code?: string }) => {
      socket.destroy();
      reject(
        signal.aborted
          ? (signal.reason as Error)
          : new TransientError('Unreachable', `${host}:${port} can't be reached (${error.code ?? error.message})`, {
              cause: error,
            }),
      );
    };
    const socket = connect({ host: addresses[0] ?? '', port, timeout: CONNECT_MS, signal });
    socket.once('connect', () => {
      socket.destroy();
      resolve();
    });
    socket.once('timeout', () => fail(Object.assign(new Error('no answer'), { code: 'ETIMEDOUT' })));
    socket.once('error', fail);
  });
}

/** What the remote has under that name: a branch before a tag, a commit as it is. */
async function wantedOf({ url, ref }: GitSpec, git: Git, signal: AbortSignal): Promise<Wanted> {
  if (ref !== undefined && COMMIT.test(ref)) return { kind: 'commit', name: ref, commit: ref };
  const names =
    ref === undefined
      ? ['HEAD']
      : ref.startsWith('refs/')
        ? [ref]
        : [`refs/heads/${ref}`, `refs/tags/${ref}`, `refs/tags/${ref}^{}`];
  const { stdout } = await must(git.run(['ls-remote', '--symref', '--', url, ...names], signal), 'ls-remote');
  const found = new Map<string, string>();
  let branch: string | undefined;
  for (const line of stdout.split('\n')) {
    const [what = '', name = ''] = line.split('\t');
    if (what.startsWith('ref: refs/heads/') && name === 'HEAD') branch = what.slice('ref: refs/heads/'.length);
    else if (COMMIT.test(what)) found.set(name, what);
  }
  if (ref === undefined) {
    const commit = found.get('HEAD');
    if (commit === undefined) return { kind: 'nothing' };
    return branch === undefined ? { kind: 'commit', name: commit, commit } : { kind: 'branch', name: branch, commit };
  }
  for (const name of names) {
    const commit = found.get(name);
    if (commit === undefined) continue;
    if (name.startsWith('refs/heads/')) return { kind: 'branch', name: name.slice('refs/heads/'.length), commit };
    if (name.startsWith('refs/tags/'))
      return { kind: 'tag', name: name.slice('refs/tags/'.length), commit: found.get(`${name}^{}`) ?? commit };
    return { kind: 'commit', name, commit };
  }
  const hint = /^[0-9a-f]{4,39}$/.test(ref) ? '; a commit needs its whole hash' : '';
  throw new PermanentError('NotFound', `the repository has no branch or tag ${ref}${hint}`);
}

/** What `git clone` does, in steps that also take a commit. */
async function cloned(spec: GitSpec, wanted: Wanted, git: Git, into: string, signal: AbortSignal): Promise<void> {
  const here = async (...args: readonly string[]) => await must(git.run(['-C', into, ...args], signal), args[0] ?? '');
  const depth = spec.depth ?? 1;
  const branch = wanted.kind === 'branch' ? wanted.name : 'main';
  await here('init', '--quiet', '--template=', `--initial-branch=${branch}`);
  const single = depth > 0 && wanted.kind === 'branch' ? ['-t', wanted.name] : [];
  await here('remote', 'add', ...single, '--', 'origin', spec.url);
  if (wanted.kind === 'nothing') return;
  const refs = refspecs(wanted, depth);
  const how = ['--quiet', '--no-recurse-submodules', '--no-write-fetch-head', '--no-auto-maintenance'];
  await here('fetch', ...how, ...(depth > 0 ? [`--depth=${depth}`, '--no-tags'] : ['--tags']), 'origin', ...refs);
  if (wanted.kind === 'branch')
    await here('checkout', '--quiet', '-B', wanted.name, '--track', `refs/remotes/origin/${wanted.name}`);
  else
    await here('checkout', '--quiet', '--detach', wanted.kind === 'tag' ? `refs/tags/${wanted.name}` : wanted.commit);
}

function refspecs(wanted: Exclude<Wanted, { kind: 'nothing' }>, depth: number): readonly string[] {
  const all = depth === 0 ? ['+refs/heads/*:refs/remotes/origin/*'] : [];
  switch (wanted.kind) {
    case 'branch':
      return depth === 0 ? all : [`+refs/heads/${wanted.name}:refs/remotes/origin/${wanted.name}`];
    case 'tag':
      return [...all, `+refs/tags/${wanted.name}:refs/tags/${wanted.name}`];
    case 'commit':
      return [...all, wanted.commit];
  }
}

/** Git writes as much as it is sent: the clone is measured while it grows, and stopped at the workspace's limits. */
async function watched(
  folder: string,
  limits: Limits,
  onBytes: (bytes: number) => void,
  signal: AbortSignal,
  work: (signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const over = new AbortController();
  const done = new AbortController();
  const watching = (async () => {
    while (!done.signal.aborted) {
      const began = performance.now();
      const { bytes, entries } = await sizeOf(folder, limits.entries);
      onBytes(bytes);
      if (bytes > limits.totalBytes)
        over.abort(
          new PermanentError(
            'WorkspaceFull',
            `the clone has ${bytes} bytes and grows, at most ${limits.totalBytes} may be fetched (files.maxTotalSize, and the chart's seed.scratch); .git counts too, git.depth bounds it`,
          ),
        );
      if (entries > limits.entries)
        over.abort(
          new PermanentError(
            'TooManyFiles',
            `the clone has more than ${limits.entries} entries, files.maxFiles is ${limits.files}`,
          ),
        );
      const pause = Math.max(WATCH_MS, 5 * (performance.now() - began));
      await delay(pause, undefined, { signal: done.signal }).catch(() => undefined);
    }
  })();
  try {
    await work(AbortSignal.any([signal, over.signal]));
  } finally {
    done.abort();
    await watching;
  }
}

/** Git offers no codes: its phrases are read here and nowhere else. */
const WILL_NOT_CHANGE: readonly (readonly [RegExp, string])[] = [
  [/Host key verification failed|HOST IDENTIFICATION HAS CHANGED|No .* host key is known/, 'Forbidden'],
  [
    /Permission denied|Authentication failed|could not read (Username|Password)|error in libcrypto|invalid format/,
    'Forbidden',
  ],
  [/couldn't find remote ref|not our ref|unadvertised object/, 'NotFound'],
  [/[Rr]epository .*not found|does not appear to be a git repository|not a git repository/, 'NotFound'],
  [/Out of memory|malloc failed|mmap failed|unable to create thread/, 'OutOfMemory'],
  [/larger than files.maxTotalSize|File too large/, 'WorkspaceFull'],
  [/invalid path|is a symbolic link|File name too long/, 'PathRefused'],
  [/server certificate|SSL certificate problem/, 'Forbidden'],
  [/unable to update url base from redirection/, 'Forbidden'],
];

async function must(running: Promise<GitResult>, step: string): Promise<GitResult> {
  const result = await running;
  if (result.code === 0) return result;
  const message = `git ${step}: ${result.said === '' ? `it ended with ${result.code}` : result.said}`;
  const known = WILL_NOT_CHANGE.find(([phrase]) => phrase.test(result.said));
  throw known === undefined ? new TransientError('SeedFailed', message) : new PermanentError(known[1], message);
}
