/** One command's whole way, with real processes and a real Postgres. */
import { mkdir, readdir, readFile, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { useSandboxes } from './world.ts';

const world = useSandboxes();
const tree = (id: string) => join(world.folder, id, 'workspace');

async function pathsOf(workspace: string): Promise<string[]> {
  const all: string[] = [];
  for await (const page of world.store.tree(workspace, undefined))
    all.push(...page.map((e) => `${e.path}${e.executable ? '*' : ''}${e.target ? ` -> ${e.target}` : ''}`));
  return all;
}

describe('a command', () => {
  test('EX7: returns its output and what it changed, and the workspace has it', async () => {
    const workspace = await world.workspace();
    const owned = await world.own(workspace);
    const first = await world.run(owned, 'mkdir -p src; echo hello > src/a.txt; echo out; echo err >&2; exit 3');
    expect(first).toMatchObject({
      state: 'done',
      exitCode: 3,
      files: { created: 1, changed: 0, deleted: 0, paths: ['/src/a.txt'] },
      fromVersion: 0,
      toVersion: 1,
    });
    expect(first.head.split('\n').toSorted()).toEqual(['', 'err', 'out']);
    const second = await world.run(
      owned,
      'echo more >> src/a.txt; chmod +x src/a.txt; ln -s src/a.txt link; mkdir empty',
    );
    expect({ ...second.files, paths: second.files.paths.toSorted() }).toEqual({
      created: 1,
      changed: 1,
      deleted: 0,
      paths: ['/link', '/src/a.txt'],
    });
    const third = await world.run(owned, 'rm link; true');
    expect(third.files).toMatchObject({ created: 0, changed: 0, deleted: 1 });
    expect(await pathsOf(workspace.id)).toEqual(['/empty', '/src/a.txt*']);
  });

  test('a command that changes nothing makes no version', async () => {
    const owned = await world.own(await world.workspace());
    expect(await world.run(owned, 'true')).toMatchObject({
      exitCode: 0,
      fromVersion: 0,
      toVersion: 0,
      files: { created: 0 },
    });
  });

  test('EX14: relative paths start at the workspace, and nothing of ours is in the environment', async () => {
    const owned = await world.own(await world.workspace());
    const { head } = await world.run(owned, 'pwd; env | grep -c LATHE_ || true; echo $CI $TERM $LANG');
    expect(head).toBe(`${tree(owned.workspace.id)}\n0\n1 dumb C.UTF-8\n`);
  });

  test('P2: the call returns when the command ends, not when a child that holds its output does', async () => {
    const owned = await world.own(await world.workspace());
    const began = performance.now();
    const result = await world.run(owned, '(sleep 30; echo late) & echo early');
    expect(result).toMatchObject({ exitCode: 0, head: 'early\n' });
    expect(performance.now() - began).toBeLessThan(15_000);
  });

  test('P1: at the deadline every process ends, those that fled into sessions of their own too', async () => {
    const owned = await world.own(await world.workspace());
    const result = await world.run(
      owned,
      'trap "" TERM; setsid sh -c "trap \\"\\" TERM; echo $$ > fled; sleep 100" & echo begun; sleep 100',
      { timeoutMs: 500 },
    );
    expect(result).toMatchObject({ state: 'done', timedOut: true, head: 'begun\n' });
    const left = await world.run(owned, 'ps -eo args | grep -c "[s]leep 100"');
    expect(left.head).toBe('0\n');
  });

  test('aborting it cancels the command, and what it did until then is kept', async () => {
    const owned = await world.own(await world.workspace());
    const abort = new AbortController();
    const running = world.run(owned, 'echo kept > kept; echo begun; sleep 100', {
      signal: abort.signal,
      onOutput: () => abort.abort(),
    });
    expect(await running).toMatchObject({ state: 'done', cancelled: true, files: { created: 1 } });
  });

  test('O3: characters cut at any border join again, and binary output is shown as such', async () => {
    const owned = await world.own(await world.workspace());
    const text = await world.run(owned, 'for i in $(seq 3000); do printf "é📄"; done');
    expect(text.head + text.tail).toBe('é📄'.repeat(3_000));
    const binary = await world.run(owned, 'printf "\\377\\376\\000A"');
    expect(binary.head).toMatch(/^\[binary output, 4 bytes\]/);
  });

  test('O1: of a long output the whole is stored, and the model sees both ends', async () => {
    const owned = await world.own(await world.workspace());
    const result = await world.run(owned, 'seq 300000');
    expect(result.outputBytes).toBe(1_988_895);
    expect(result.head.startsWith('1\n2\n')).toBe(true);
    expect(result.tail.endsWith('\n300000\n')).toBe(true);
    const stored: Buffer[] = [];
    for await (const piece of world.store.readBlob(
      owned.workspace.tenant,
      Buffer.from(result.outputSha256 ?? '', 'hex'),
    ))
      stored.push(piece);
    expect(Buffer.concat(stored).length).toBe(1_988_895);
  });

  test('EX4: a file over the limit is refused and put back, the rest is committed', async () => {
    const workspace = await world.workspace();
    const owned = await world.own(workspace);
    await world.run(owned, 'echo old > big');
    const result = await world.run(owned, 'head -c 2000000 /dev/zero > big; echo small > small');
    expect(result.refused).toMatchObject([{ path: '/big', reason: 'FileTooLarge' }]);
    expect(result.files).toMatchObject({ created: 1, changed: 0, paths: ['/small'] });
    expect((await world.run(owned, 'cat big')).head).toBe('old\n');
  });

  test('F8: a command that deletes most of the workspace is undone', async () => {
    const owned = await world.own(await world.workspace());
    await world.run(owned, 'for i in $(seq 30); do echo $i > f$i; done');
    const result = await world.run(owned, 'rm -f f*');
    expect(result.refused[0]?.reason).toBe('DeletionsHeld');
    expect((await world.run(owned, 'ls | wc -l')).head.trim()).toBe('30');
  });

  test('files larger than a frame come and go whole', async () => {
    const owned = await world.own(await world.workspace());
    await world.run(owned, 'head -c 900000 /dev/urandom > big; sha256sum big > sum');
    world.provider.sandboxes.get(owned.workspace.id)?.guest.kill('SIGKILL');
    await expect
      .poll(() => world.replica.meeting(owned.workspace.id).session?.guestConnected(), { timeout: 10_000 })
      .toBe(false);
    await writeFile(join(tree(owned.workspace.id), 'big'), 'foreign');
    world.provider.restart(owned.workspace.id, 'guest');
    expect((await world.run(owned, 'sha256sum -c sum')).head).toBe('big: OK\n');
  });

  test('F1: links stay links, nothing outside is read or written through them', async () => {
    const workspace = await world.workspace();
    const owned = await world.own(workspace);
    await world.run(owned, 'ln -s /etc out; ln -s nowhere dangling; mkdir d; ln -s .. d/up');
    expect(await pathsOf(workspace.id)).toEqual(['/d/up -> ..', '/dangling -> nowhere', '/out -> /etc']);
  });

  test('a command that can not even be started ends with the reason, and the next one runs', async () => {
    const owned = await world.own(await world.workspace());
    expect(await world.run(owned, 'echo a\0b')).toMatchObject({
      state: 'done',
      message: expect.stringContaining('null bytes'),
    });
    expect((await world.run(owned, 'echo alive')).head).toBe('alive\n');
  });

  test('a tree that is nested too deep is refused as a whole and put back', async () => {
    const owned = await world.own(await world.workspace());
    await world.run(owned, 'echo kept > kept');
    const result = await world.run(owned, 'rm kept; for i in $(seq 600); do mkdir d && cd d || break; done; touch x');
    expect(result.refused).toMatchObject([{ path: '/', message: expect.stringContaining('nested deeper') }]);
    expect((await world.run(owned, 'ls')).head).toBe('kept\n');
  });

  test('ignored folders are neither taken nor touched', async () => {
    const workspace = await world.workspace();
    const owned = await world.own(workspace);
    const result = await world.run(owned, 'mkdir -p a/node_modules/b; echo x > a/node_modules/b/c; echo y > a/y');
    expect(result.files.paths).toEqual(['/a/y']);
    expect((await world.run(owned, 'cat a/node_modules/b/c')).head).toBe('x\n');
  });
});

describe('a volume that is not what the store has', () => {
  test('F4, F8: the head wins over whatever is there before the first command, links included', async () => {
    const workspace = await world.workspace();
    const { tenant, id } = workspace;
    const owned = await world.own(workspace);
    const [sha256] = await world.store.putBlobs(tenant, [Buffer.from('truth')]);
    if (sha256 === undefined) throw new Error('no hash');
    const put = (path: string) =>
      ({ path, op: 'put', kind: 'regular', executable: false, size: 5, sha256, base: 0n }) as const;
    owned.moved((await world.store.commit(owned.lease, { changes: [put('/out/x'), put('/a')], events: [] })).head);
    const outside = join(world.folder, 'outside');
    await mkdir(outside, { recursive: true });
    await mkdir(tree(id), { recursive: true });
    await symlink(outside, join(tree(id), 'out'));
    await writeFile(join(tree(id), 'a'), 'lie!!');
    await writeFile(join(tree(id), 'foreign'), 'x');
    expect((await world.run(owned, 'cat out/x a; ls; test -L out || echo folder')).head).toBe(
      'truthtrutha\nout\nfolder\n',
    );
    expect(await readdir(outside)).toEqual([]);
    expect(await readFile(join(tree(id), 'a'), 'utf8')).toBe('truth');
  });
});
