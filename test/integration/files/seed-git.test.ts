/** Seeds from real Git servers: what arrives, what never does, and how each failure is said. */
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { chmod, mkdir, mkdtemp, readdir, readlink, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { issueLeaf, newAuthority } from '../../../operator/controllers/certificate-authority.ts';
import type { WorkspaceRow } from '../../../operator/store/rows.ts';
import {
  makeRepository,
  newKeyPair,
  startGitServer,
  startSshServer,
  type GitServer,
  type Repository,
} from '../../fakes/git-server.ts';
import { useSeeds } from './world.ts';

const world = useSeeds();
const execute = promisify(execFile);
const PASSWORD = 'pa55-w0rd/with?odd&characters';
let repository: Repository;
let server: GitServer;
let first: string;
const url = (host = 'git.test', port = server.port) => `http://${host}:${port}/repo/.git`;

beforeAll(async () => {
  repository = await makeRepository();
  const { folder, git } = repository;
  await writeFile(join(folder, 'README.md'), 'first\n');
  await git('add', '.');
  await git('commit', '--quiet', '-m', 'first');
  first = await git('rev-parse', 'HEAD');
  await git('tag', 'v1');
  await git('tag', '-a', 'v1-annotated', '-m', 'annotated');
  await writeFile(join(folder, 'run.sh'), '#!/bin/sh\n');
  await chmod(join(folder, 'run.sh'), 0o755);
  await mkdir(join(folder, 'src'));
  await writeFile(join(folder, 'src', 'ünï 💡 -n\n.txt'), 'odd\n');
  await writeFile(join(folder, 'large.bin'), Buffer.alloc(700_000, 'large '));
  for (const [name, target] of Object.entries({
    file: 'README.md',
    folder: 'src',
    dangling: 'nowhere',
    absolute: '/etc/passwd',
    up: '../../..',
    loop: 'loop',
  }))
    await symlink(target, join(folder, `link-${name}`));
  await git('add', '.');
  await git('commit', '--quiet', '-m', 'second');
  await git('branch', 'feature/x', first);
  server = await startGitServer(folder, { user: 'ada', password: PASSWORD });
  world.secrets.set('team/basic', {
    data: new Map([
      ['username', Buffer.from('ada')],
      ['password', Buffer.from(`${PASSWORD}\n`)],
    ]),
  });
});
afterAll(async () => {
  await server?.[Symbol.asyncDispose]();
  await repository?.[Symbol.asyncDispose]();
});

const basic = { secretName: 'basic' } as const;
const failed = (row: WorkspaceRow) => `${row.seed_state}: ${row.seed_error ?? ''}`;

/** The tree on a disk, so that git itself can say what it thinks of it. */
async function checkedOut<T>(
  workspace: WorkspaceRow,
  work: (git: (...args: string[]) => Promise<string>, root: string) => Promise<T>,
): Promise<T> {
  const root = await mkdtemp(join(tmpdir(), 'lathe-out-'));
  try {
    for (const { path, kind, executable, target } of await world.tree(workspace)) {
      const to = join(root, path);
      await mkdir(dirname(to), { recursive: true });
      if (kind === 'directory') await mkdir(to);
      else if (kind === 'symlink') await symlink(target ?? '', to);
      else await writeFile(to, await world.read(workspace, path), { mode: executable ? 0o755 : 0o644, flag: 'wx' });
    }
    const env = { PATH: process.env['PATH'], HOME: root, GIT_CONFIG_NOSYSTEM: '1' };
    return await work(async (...args) => (await execute('git', ['-C', root, ...args], { env })).stdout.trim(), root);
  } finally {
    await rm(root, { recursive: true, force: true });
  }
}

describe('a repository becomes version 1', () => {
  test('EN2, F1, F2, F3: shallow, with .git, links as links, modes and odd names', async () => {
    const workspace = await world.seeded({ git: { url: url(), ...basic } });
    const row = await world.attempt(workspace);
    expect(failed(row)).toBe('Done: ');
    expect(row.head).toBe(1n);
    const tree = new Map((await world.tree(workspace)).map((e) => [e.path, e]));
    expect(tree.get('/run.sh')).toMatchObject({ executable: true });
    expect(tree.get('/README.md')).toMatchObject({ executable: false });
    expect(tree.get('/src/ünï 💡 -n\n.txt')).toMatchObject({ kind: 'regular', size: 4n });
    expect(
      [...tree.values()].filter((e) => e.path.startsWith('/link-')).map((e) => [e.path, e.kind, e.target]),
    ).toEqual([
      ['/link-absolute', 'symlink', '/etc/passwd'],
      ['/link-dangling', 'symlink', 'nowhere'],
      ['/link-file', 'symlink', 'README.md'],
      ['/link-folder', 'symlink', 'src'],
      ['/link-loop', 'symlink', 'loop'],
      ['/link-up', 'symlink', '../../..'],
    ]);
    expect((await world.read(workspace, '/large.bin')).equals(Buffer.alloc(700_000, 'large '))).toBe(true);
    await checkedOut(workspace, async (git) => {
      expect(await git('status', '--porcelain', '--branch')).toBe('## trunk...origin/trunk');
      expect(await git('log', '--format=%s')).toBe('second');
      expect(await git('remote', 'get-url', 'origin')).toBe(url());
      expect(await git('fsck', '--strict')).toBe('');
    });
    expect(await world.leftovers()).toEqual([]);
  });

  test.for([
    ['all of the history', { depth: 0 }, 'trunk', ['second', 'first']],
    ['two commits of it', { depth: 2 }, 'trunk', ['second', 'first']],
    ['a branch', { ref: 'feature/x' }, 'feature/x', ['first']],
    ['a branch of all the history', { ref: 'feature/x', depth: 0 }, 'feature/x', ['first']],
    ['a tag', { ref: 'v1' }, 'HEAD', ['first']],
    ['an annotated tag', { ref: 'v1-annotated' }, 'HEAD', ['first']],
    ['a whole ref', { ref: 'refs/tags/v1' }, 'HEAD', ['first']],
  ] as const)('EN2: %s', async ([, more, branch, log]) => {
    const workspace = await world.seeded({ git: { url: url(), ...basic, ...more } });
    expect(failed(await world.attempt(workspace))).toBe('Done: ');
    await checkedOut(workspace, async (git) => {
      expect(await git('rev-parse', '--abbrev-ref', 'HEAD')).toBe(branch);
      expect(await git('log', '--format=%s')).toBe(log.join('\n'));
      expect(await git('status', '--porcelain')).toBe('');
    });
    const [event] = await world.events(workspace);
    expect(event).toMatchObject({
      type: 'files.committed',
      payload: {
        origin: 'seed',
        toVersion: 1,
        source: { git: { url: url(), commit: expect.stringMatching(/^[0-9a-f]{40}$/) } },
      },
    });
  });

  test('EN2: a commit by its hash', async () => {
    const workspace = await world.seeded({ git: { url: url(), ...basic, ref: first } });
    expect(failed(await world.attempt(workspace))).toBe('Done: ');
    await checkedOut(workspace, async (git) => expect(await git('rev-parse', 'HEAD')).toBe(first));
  });

  test('an empty repository is a .git and nothing else', async () => {
    await using empty = await makeRepository();
    await using served = await startGitServer(empty.folder);
    const workspace = await world.seeded({ git: { url: url('git.test', served.port) } });
    expect(failed(await world.attempt(workspace))).toBe('Done: ');
    await checkedOut(workspace, async (git) =>
      expect(await git('status', '--porcelain', '--branch')).toContain('No commits yet'),
    );
  });

  test('over https, with the certificates that are trusted, and no others', async () => {
    const authority = await newAuthority(new Date());
    const leaf = await issueLeaf(authority, { commonName: 'git.test', names: ['git.test'], addresses: [] }, new Date());
    await using served = await startGitServer(repository.folder, { tls: { cert: leaf.certificate, key: leaf.key } });
    const secure = `https://git.test:${served.port}/repo/.git`;
    const trusted = await world.seeded({ git: { url: secure } });
    expect(failed(await world.attempt(trusted, { certificates: [authority.certificate] }))).toBe('Done: ');
    const refused = await world.attempt(await world.seeded({ git: { url: secure } }));
    expect(refused.seed_state).toBe('Ready');
    expect(refused.seed_message).toMatch(/certificate/);
  });

  test('what a class lets commands write does not narrow a seed', async () => {
    const workspace = await world.seeded({ git: { url: url(), ...basic } }, { files: { writable: ['/out/**'] } });
    expect(failed(await world.attempt(workspace))).toBe('Done: ');
  });
});

describe('a credential', () => {
  test('S8: is in no file, event, message or folder that a seed leaves, and is sent as it was given', async () => {
    const workspace = await world.seeded({ git: { url: url(), ...basic } });
    expect(failed(await world.attempt(workspace))).toBe('Done: ');
    expect(server.asked.at(-1)).toMatch(/^ada@/);
    const forms = [PASSWORD, encodeURIComponent(PASSWORD), Buffer.from(`ada:${PASSWORD}`).toString('base64')];
    const contents = [
      JSON.stringify(await world.events(workspace), (_k, v: unknown) => (typeof v === 'bigint' ? `${v}` : v)),
    ];
    for (const { path, kind } of await world.tree(workspace))
      if (kind === 'regular') contents.push((await world.read(workspace, path)).toString('latin1'));
    for (const form of forms) expect(contents.filter((c) => c.includes(form))).toEqual([]);
  });

  test('S8: that is refused is not in the message', async () => {
    world.secrets.set('team/wrong', { data: new Map([['password', Buffer.from('wr0ng-password')]]) });
    const row = await world.attempt(await world.seeded({ git: { url: url(), secretName: 'wrong' } }));
    expect(failed(row)).toMatch(/^Failed: git.test:\d+ answers 401: it refuses the credential of Secret wrong$/);
  });

  test('that is missing is said, for good', async () => {
    const row = await world.attempt(await world.seeded({ git: { url: url() } }));
    expect(failed(row)).toMatch(/^Failed: .* answers 401: it wants a credential; name a Secret in git.secretName$/);
  });

  test('whose Secret is not there yet is waited for, and then used', async () => {
    const workspace = await world.seeded({ git: { url: url(), secretName: 'later' } });
    const waiting = await world.attempt(workspace);
    expect([waiting.seed_state, waiting.seed_message]).toEqual(['Ready', 'waiting: there is no Secret later (try 1)']);
    world.secrets.set('team/later', { data: new Map([['username', Buffer.from('ada')]]) });
    expect((await world.attempt(workspace)).seed_message).toMatch(/Secret later has no key password/);
    world.secrets.get('team/later')?.data.set('password', Buffer.from(PASSWORD));
    expect(failed(await world.attempt(workspace))).toBe('Done: ');
  });

  test('S8: that is for other hosts is not sent', async () => {
    world.secrets.set('team/elsewhere', {
      data: world.secrets.get('team/basic')?.data ?? new Map(),
      hosts: ['github.com'],
    });
    const before = server.asked.length;
    const row = await world.attempt(await world.seeded({ git: { url: url(), secretName: 'elsewhere' } }));
    expect(failed(row)).toMatch(/^Failed: Secret elsewhere is for github.com .*, not for git.test$/);
    expect(server.asked.length).toBe(before);
  });
});

describe('what can not be fetched', () => {
  test.for([
    ['no such branch', { ref: 'nowhere' }, /^Failed: the repository has no branch or tag nowhere$/],
    ['half a commit', { ref: 'abcdef1' }, /^Failed: .*a commit needs its whole hash$/],
    ['an unknown commit', { ref: '0123456789012345678901234567890123456789' }, /^Failed: git fetch: .*not our ref/],
  ] as const)('%s fails for good, in words', async ([, more, says]) => {
    expect(failed(await world.attempt(await world.seeded({ git: { url: url(), ...basic, ...more } })))).toMatch(says);
  });

  test('S6: a redirect is not followed, and where it leads is said', async () => {
    for (const location of ['http://metadata.test/latest/meta-data?token=x', 'http://127.0.0.1:1/repo/info/refs']) {
      server.answer({ status: 302, location });
      const row = await world.attempt(await world.seeded({ git: { url: url(), ...basic } }));
      expect(failed(row)).toMatch(/^Failed: git.test:\d+ redirects to http:\/\/[^?]+; redirects are not followed/);
    }
    server.answer(undefined);
  });

  test.for([
    ['http://loopback.test:1/x', 'not encrypted'],
    ['https://loopback.test:1/x', 'resolves to 127.0.0.1'],
    ['https://private.test/x', 'resolves to 10.1.2.3'],
    ['https://metadata.test/x', 'resolves to 169.254.169.254'],
    ['https://127.0.0.1/x', 'no public address'],
    ['https://2130706433/x', 'no public address'],
    ['https://0x7f.1/x', 'no public address'],
    ['https://[::1]/x', 'no public address'],
    ['https://[::ffff:127.0.0.1]/x', 'no public address'],
    ['file:///etc', 'starts with file:'],
    ['ext::sh -c id', 'starts with ext:'],
    ['https://ada:secret@git.test/x', 'has credentials in it'],
    ['ssh://-oX@git.test/x', 'of other characters'],
    ['-oX@git.test:x', 'is no URL'],
  ] as const)('S6: %s is not called', async ([from, says]) => {
    const row = await world.attempt(await world.seeded({ git: { url: from } }));
    expect(failed(row)).toMatch(/^Failed: /);
    expect(row.seed_error).toContain(says);
    expect(row.seed_error).not.toContain('secret@');
  });

  test('a server that is away, unknown or out of order is waited for, more and more patiently', async () => {
    for (const [from, says] of [
      ['http://git.test:1/x', /^waiting: git.test:1 can't be reached \(ECONNREFUSED\)/],
      ['https://unknown.test/x', /^waiting: host unknown.test can't be looked up \(ENOTFOUND\)/],
    ] as const) {
      const workspace = await world.seeded({ git: { url: from } });
      for (const attempt of [1, 2, 3, 4, 5, 6]) {
        const row = await world.attempt(workspace);
        expect([row.seed_state, row.seed_attempts]).toEqual(['Ready', attempt]);
        expect(row.seed_message).toMatch(says);
      }
      const [due] = await world.store.database.query<{ in_s: number }>(
        'due-in',
        'SELECT extract(epoch FROM seed_retry_at - now())::float8 AS in_s FROM workspace WHERE id = $1',
        [workspace.id],
      );
      expect(due?.in_s).toBeGreaterThan(50);
      expect(due?.in_s).toBeLessThanOrEqual(60);
    }
    const workspace = await world.seeded({ git: { url: url(), ...basic } });
    server.answer({ status: 503 });
    expect((await world.attempt(workspace)).seed_message).toMatch(/answers 503/);
    server.answer(undefined);
    expect(failed(await world.attempt(workspace))).toBe('Done: ');
  });

  test('a server that stops in the middle costs the time of a try, and no process of it is left', async () => {
    let requests = 0;
    const hanging = createServer((_request, response) => {
      requests += 1;
      // The first one is ours; git's are never answered.
      if (requests === 1) response.end();
    }).listen(0, '127.0.0.1');
    await once(hanging, 'listening');
    const { port } = hanging.address() as AddressInfo;
    const row = await world.attempt(await world.seeded({ git: { url: url('git.test', port) } }), { timeoutMs: 1_500 });
    expect([row.seed_state, row.seed_message]).toEqual([
      'Ready',
      expect.stringMatching(/^waiting: it was not done after 1.5 s/),
    ]);
    expect(requests).toBeGreaterThan(1);
    hanging.closeAllConnections();
    hanging.close();
    const left: string[] = [];
    for (const pid of (await readdir('/proc')).filter((name) => /^\d+$/.test(name)))
      if ((await readlink(`/proc/${pid}/cwd`).catch(() => '')).startsWith(world.folder)) left.push(pid);
    expect([left, await world.leftovers()]).toEqual([[], []]);
  });

  test('F5: a repository over the limits fails with the limit, .git included', async () => {
    const of = async (files: object, more = {}) =>
      failed(await world.attempt(await world.seeded({ git: { url: url(), ...basic, ...more } }, { files })));
    expect(await of({ maxFileSize: '100Ki' })).toMatch(/^Failed: "\/large.bin" has 700000 bytes, files.maxFileSize is/);
    expect(await of({ maxTotalSize: '300Ki' })).toMatch(/^Failed: .*files.maxTotalSize/);
    expect(await of({ maxFiles: 5 })).toMatch(/^Failed: there are more than 5 files/);
    expect(await world.leftovers()).toEqual([]);
  });

  test('F11: a repository with a path that names a parent, or .git, is refused whole', async () => {
    await using evil = await makeRepository();
    await using served = await startGitServer(evil.folder);
    await writeFile(join(evil.folder, 'a'), 'x');
    const blob = await evil.git('hash-object', '-w', 'a');
    const { stdin, done } = piped(evil.folder, 'mktree');
    stdin.end(`100644 blob ${blob}\t..\n`);
    const tree = await done;
    const commit = await evil.git('commit-tree', '-m', 'evil', tree);
    await evil.git('update-ref', 'refs/heads/trunk', commit);
    const row = await world.attempt(await world.seeded({ git: { url: url('git.test', served.port) } }));
    expect(failed(row)).toMatch(/^Failed: git checkout: .*invalid path/);
    expect((await world.store.head(row.id)).head).toBe(0n);
  });

  test('hooks, filters and configuration of a repository are data', async () => {
    await using odd = await makeRepository();
    await using served = await startGitServer(odd.folder);
    const marker = join(world.folder, '..', `ran-${process.pid}`);
    await writeFile(join(odd.folder, '.gitattributes'), '* filter=evil\n');
    await writeFile(
      join(odd.folder, '.gitmodules'),
      `[submodule "x"]\n\tpath = x\n\turl = http://127.0.0.1:1/\n\tupdate = !touch ${marker}\n`,
    );
    await writeFile(
      join(odd.folder, '.gitconfig'),
      `[core]\n\thooksPath = .\n[filter "evil"]\n\tsmudge = touch ${marker}\n`,
    );
    await writeFile(join(odd.folder, 'post-checkout'), `#!/bin/sh\ntouch ${marker}\n`, { mode: 0o755 });
    await odd.git('add', '.');
    await odd.git('commit', '--quiet', '-m', 'odd');
    const workspace = await world.seeded({ git: { url: url('git.test', served.port) } });
    expect(failed(await world.attempt(workspace))).toBe('Done: ');
    await expect(rm(marker)).rejects.toThrow(/ENOENT/);
    expect((await world.tree(workspace)).filter((e) => e.path.startsWith('/.git/hooks'))).toEqual([]);
  });
});

describe('over ssh', () => {
  const key = newKeyPair();
  const secret = (name: string, privateKey: string, knownHosts: string) =>
    world.secrets.set(`team/${name}`, {
      data: new Map([
        ['ssh-privatekey', Buffer.from(privateKey.trim())],
        ['known_hosts', Buffer.from(knownHosts)],
      ]),
    });

  test('the key opens it, the host key is checked, and other keys are refused', async () => {
    await using ssh = await startSshServer(join(repository.folder, '..'), key);
    const from = `ssh://git@git.test:${ssh.port}/repo/.git`;
    const hosts = `[git.test]:${ssh.port} ${ssh.publicKey}\n`;
    secret('key', key.privateKey, hosts);
    const workspace = await world.seeded({ git: { url: from, secretName: 'key' } });
    const row = await world.attempt(workspace);
    expect(failed(row)).toBe('Done: ');
    await checkedOut(workspace, async (git) => {
      expect(await git('log', '--format=%s')).toBe('second');
      expect(await git('remote', 'get-url', 'origin')).toBe(from);
    });
    const body = key.privateKey.split('\n')[2] ?? 'no key';
    for (const { path, kind } of await world.tree(workspace))
      if (kind === 'regular') expect((await world.read(workspace, path)).includes(body), path).toBe(false);

    secret('other-host', key.privateKey, `[git.test]:${ssh.port} ${newKeyPair().publicKey}\n`);
    expect(failed(await world.attempt(await world.seeded({ git: { url: from, secretName: 'other-host' } })))).toMatch(
      /^Failed: git ls-remote: .*Host key verification failed/,
    );
    secret('other-name', key.privateKey, `github.com ${ssh.publicKey}\n`);
    expect(failed(await world.attempt(await world.seeded({ git: { url: from, secretName: 'other-name' } })))).toMatch(
      /^Failed: git ls-remote: .*Host key verification failed/,
    );
    secret('other-key', newKeyPair().privateKey, hosts);
    expect(failed(await world.attempt(await world.seeded({ git: { url: from, secretName: 'other-key' } })))).toMatch(
      /^Failed: git ls-remote: .*Permission denied/,
    );
  });

  test('S6: a private address is not dialled, one that is away is waited for', async () => {
    secret('any', key.privateKey, 'x');
    const of = (from: string) => world.seeded({ git: { url: from, secretName: 'any' } });
    expect(failed(await world.attempt(await of('git@private.test:repo')))).toMatch(/^Failed: private.test resolves to/);
    expect(failed(await world.attempt(await of('ssh://git@127.0.0.1/repo')))).toMatch(/no public address/);
    expect((await world.attempt(await of('ssh://git@git.test:1/repo'))).seed_message).toMatch(/ECONNREFUSED/);
    expect(failed(await world.attempt(await world.seeded({ git: { url: 'git@git.test:repo' } })))).toMatch(
      /host keys are always checked/,
    );
  });
});

function piped(folder: string, ...args: string[]) {
  const child = execFile('git', ['-C', folder, ...args], () => undefined);
  let out = '';
  child.stdout?.on('data', (piece: string) => (out += piece));
  const done = new Promise<string>((resolve) => child.once('close', () => resolve(out.trim())));
  if (child.stdin === null) throw new Error('no stdin');
  return { stdin: child.stdin, done };
}
