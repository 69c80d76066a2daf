/** `kubectl lathe` as a person types it. */
import { mkdir, readFile, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { useClients } from './world.ts';

const world = useClients();
const file = async (name: string, content: string | Buffer) => {
  const path = join(world.folder, name);
  await writeFile(path, content);
  return path;
};

test('put, ls, cat, get, cp, diff, history, restore, rm', async () => {
  const w = await world.workspace();
  const local = await file('a.txt', 'one\n');
  expect(await world.cli('put', local, `${w.name}:/a.txt`)).toEqual({
    code: 0,
    stdout: 'version 1: 1 created, 0 changed, 0 deleted\n',
    stderr: '',
  });
  await mkdir(join(world.folder, 'tree/sub'), { recursive: true });
  await file('tree/sub/b.txt', 'two\n');
  await symlink('sub/b.txt', join(world.folder, 'tree/link'));
  expect((await world.cli('cp', join(world.folder, 'tree'), `${w.name}:/t`)).stdout).toBe(
    'version 2: 2 created, 0 changed, 0 deleted\n',
  );
  expect((await world.cli('ls', w.name)).stdout).toBe(
    'PATH          SIZE  MODE\n/a.txt        4     0644\n/t/link       9     -> sub/b.txt\n/t/sub/b.txt  4     0644\n',
  );
  expect((await world.cli('ls', `${w.name}:/t`, '**/*.txt')).stdout).toContain('/t/sub/b.txt');
  expect((await world.cli('cat', `${w.name}:a.txt`, `${w.name}:/t/sub/b.txt`)).stdout).toBe('one\ntwo\n');
  await world.cli('get', `${w.name}:/a.txt`, join(world.folder, 'back.txt'));
  expect(await readFile(join(world.folder, 'back.txt'), 'utf8')).toBe('one\n');
  await world.cli('cp', `${w.name}:/t`, join(world.folder, 'down'));
  expect(await readFile(join(world.folder, 'down/sub/b.txt'), 'utf8')).toBe('two\n');
  await world.cli('cp', `${w.name}:/a.txt`, `${w.name}:/copy/`);
  expect((await world.cli('diff', w.name)).stdout).toBe(
    'diff --git a/copy/a.txt b/copy/a.txt\nnew file mode 100644\n--- /dev/null\n+++ b/copy/a.txt\n@@ -0,0 +1,1 @@\n+one\n',
  );
  expect((await world.cli('rm', `${w.name}:/**/*.txt`, '--dry-run')).stdout).toBe(
    'would be: 0 created, 0 changed, 3 deleted\n',
  );
  expect((await world.cli('rm', `${w.name}:/**/*.txt`)).stdout).toBe(
    'version 4: 2 created, 0 changed, 3 deleted\n'.replace('2 created', '0 created'),
  );
  const history = JSON.parse((await world.cli('history', w.name, '-o', 'json')).stdout) as {
    version: number;
    deleted: number;
  }[];
  expect(history.map(({ version, deleted }) => [version, deleted])).toEqual([
    [4, 3],
    [3, 0],
    [2, 0],
    [1, 0],
  ]);
  expect((await world.cli('restore', w.name, '3', '--dry-run')).stdout).toBe(
    'would be: 3 created, 0 changed, 0 deleted\n',
  );
  expect((await world.cli('restore', w.name, '3', '/a.txt')).stdout).toBe(
    'version 5: 1 created, 0 changed, 0 deleted\n',
  );
});

describe('exit codes and messages', () => {
  test.for<[code: number, words: (w: string) => string[], says: RegExp]>([
    [2, () => ['explode'], /there is no command "explode"/],
    [2, (w) => ['ls', w, '--nonsense'], /--nonsense/],
    [2, (w) => ['ls', w, '-o', 'xml'], /one of table, wide, json, yaml/],
    [2, () => ['cp', './a', './b'], /neither .* is WORKSPACE:PATH/],
    [3, (w) => ['cat', `${w}:/nope`], /there is no file "\/nope" in version 0/],
    [3, (w) => ['put', '/nope', `${w}:/a`], /there is no \/nope on this machine/],
    [3, () => ['ls', 'nowhere:/x'], /"nowhere" not found/],
    [5, (w) => ['cat', `${w}:/../x`], /has a \.\. segment/],
  ])('%i', async ([code, words, says]) => {
    const { name } = await world.workspace();
    const result = await world.cli(...words(name));
    expect([result.code, result.stdout]).toEqual([code, '']);
    expect(result.stderr).toMatch(says);
  });

  test('4 and 6: a conflict, and what is forbidden', async () => {
    const { name } = await world.workspace();
    const local = await file('c.txt', 'x');
    await world.cli('put', local, `${name}:/c`);
    expect((await world.cli('put', local, `${name}:/c`, '--if-match', 'absent')).code).toBe(4);
    world.allows = () => false;
    const refused = await world.cli('cat', `${(await world.workspace()).name}:/c`);
    world.allows = () => true;
    expect(refused).toMatchObject({
      code: 6,
      stderr: expect.stringContaining('user "ada" can\'t get resource "workspaces/files"') as unknown,
    });
  });
});

test('S7: names and messages that would move a terminal are spelled out; JSON and contents are as they are', async () => {
  const w = await world.workspace();
  const evil = '/\u001B[2J\u202Etxt.exe';
  const content = '\u001B[31mred';
  await world.ask('PUT', w, 'files', { query: { path: evil }, body: content });
  const listed = (await world.cli('ls', w.name)).stdout;
  // oxlint-disable-next-line no-control-regex
  expect(listed).not.toMatch(/[\u001B\u202E]/);
  expect(listed).toContain('/\\u{1b}[2J\\u{202e}txt.exe');
  expect((JSON.parse((await world.cli('ls', w.name, '-o', 'json')).stdout) as { path: string }[])[0]?.path).toBe(evil);
  expect((await world.cli('cat', `${w.name}:${evil}`)).stdout).toBe(content);
  const missing = await world.cli('cat', `${w.name}:/\u001B]0;owned`);
  // oxlint-disable-next-line no-control-regex
  expect(missing.stderr).not.toMatch(/\u001B/);
});

test.for(['bash', 'zsh', 'fish'])('completion for %s names every command', async (shell) => {
  const { code, stdout } = await world.cli('completion', shell);
  expect(code).toBe(0);
  for (const name of ['ls', 'cat', 'put', 'get', 'cp', 'rm', 'diff', 'history', 'restore', 'status'])
    expect(stdout).toContain(name);
});

test('help says what each command takes', async () => {
  expect((await world.cli()).stdout).toContain('cp FROM TO');
  expect((await world.cli('cp', '--help')).stdout).toContain('--dry-run');
});
