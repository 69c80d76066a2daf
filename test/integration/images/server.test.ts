/** The server's tree as a root: what it needs to clone is in it, and runs without anything of this machine. */
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { buildImages } from '../../../images/build.ts';
import { makeRepository, startGitServer } from '../../fakes/git-server.ts';

const execute = promisify(execFile);

// Only root goes into another root.
describe.skipIf(process.getuid?.() !== 0)('the server image', () => {
  let folder = '';
  let root = '';
  const inside = async (command: string): Promise<string> =>
    (
      await execute('/usr/sbin/chroot', [root, '/bin/sh', '-c', command], {
        env: { PATH: '/bin', HOME: '/tmp', GIT_CONFIG_NOSYSTEM: '1' },
      })
    ).stdout;

  beforeAll(async () => {
    const [image] = await buildImages({ only: ['server'] }, AbortSignal.timeout(120_000));
    folder = await mkdtemp(join(tmpdir(), 'lathe-server-'));
    const archive = join(folder, 'archive');
    root = join(folder, 'root');
    await execute('mkdir', [archive, root]);
    await execute('tar', ['-C', archive, '-xf', image?.archive ?? '']);
    const [manifest] = JSON.parse(await readFile(join(archive, 'manifest.json'), 'utf8')) as { Layers: string[] }[];
    for (const layer of manifest?.Layers ?? []) await execute('tar', ['-C', root, '-xf', join(archive, layer)]);
    // What a container runtime puts there.
    await execute('mknod', ['-m', '666', join(root, 'dev/null'), 'c', '1', '3']);
    await execute('mknod', ['-m', '666', join(root, 'dev/urandom'), 'c', '1', '9']);
  }, 120_000);
  afterAll(() => rm(folder, { recursive: true, force: true }));

  test.for([
    ['git --version', /^git version 2/],
    ['ssh -V 2>&1', /^OpenSSH_/],
    ['/usr/lib/git-core/git-remote-https 2>&1 || true', /remote-curl: usage/],
  ] as const)('EN2: %s runs with the libraries that are there', async ([command, says]) => {
    expect(await inside(command)).toMatch(says);
  });

  test('EN2: git clones over HTTP, under the limits that a seed gives it', async () => {
    await using repository = await makeRepository();
    await repository.git('commit', '--quiet', '--allow-empty', '-m', 'first');
    await using server = await startGitServer(repository.folder);
    const clone = `git clone -q --template= http://127.0.0.1:${server.port}/repo/.git /tmp/clone`;
    expect(await inside(`ulimit -v 524288; ulimit -f 2048; ${clone} && git -C /tmp/clone log --format=%s`)).toBe(
      'first\n',
    );
  });
});
