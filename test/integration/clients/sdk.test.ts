/** The TypeScript client at work. */
import { randomBytes } from 'node:crypto';
import { chmod, lstat, mkdir, readFile, readlink, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { normalisePath } from '../../../proto/paths.ts';
import { ConflictError, ForbiddenError, NotFoundError, RefusedError, workspaceName } from '../../../sdk/index.ts';
import { useClients } from './world.ts';

const world = useClients();
const LARGE = {
  files: {
    ignored: [],
    maxFileSize: '64Mi',
    maxTotalSize: '128Mi',
    maxFiles: 5_000,
    deletions: { ratio: 50, atLeast: 20 },
  },
};

describe('files', () => {
  test('write, read, stat, exists, list, glob, rename, remove', async () => {
    const w = await world.open();
    expect(await w.write('/src/a.ts', 'let a;', { executable: true })).toMatchObject({ version: 1, committed: true });
    await w.writeAll({ '/src/b.ts': 'let b;', '/c.txt': Buffer.from([0, 255]) });
    expect(await w.readText('src/a.ts')).toBe('let a;');
    expect([...(await w.read('/c.txt'))]).toEqual([0, 255]);
    expect(await w.stat('/src/a.ts')).toMatchObject({
      kind: 'regular',
      executable: true,
      size: 6,
      version: 1,
      head: 2,
    });
    expect([await w.exists('/src/a.ts'), await w.exists('/nope')]).toEqual([true, false]);
    expect(await w.glob('**/*.ts')).toEqual(['/src/a.ts', '/src/b.ts']);
    await w.rename('/src', '/lib');
    const paths = [];
    for await (const { path } of w.list()) paths.push(path);
    expect(paths).toEqual(['/c.txt', '/lib/a.ts', '/lib/b.ts']);
    await w.remove('/lib', { recursive: true });
    expect((await w.versions()).map((v) => v.version)).toEqual([4, 3, 2, 1]);
    await w.restore({ version: 2 });
    expect(await w.readText('/src/b.ts')).toBe('let b;');
    expect(await w.patch({ from: 1, to: 2, glob: '/src/**' })).toContain('+let b;');
    await w.write('/empty', '');
    expect(await w.readText('/empty')).toBe('');
  });

  test('what is refused is an error of its kind', async () => {
    const w = await world.open();
    await expect(w.read('/nope')).rejects.toThrow(NotFoundError);
    await w.write('/a', '1');
    await expect(w.write('/a', '2', { ifMatch: 'absent' })).rejects.toThrow(ConflictError);
    await expect(w.write('/big', Buffer.alloc(2 << 20))).rejects.toThrow(RefusedError);
    const other = await world.open();
    world.allows = () => false;
    await expect(other.read('/a')).rejects.toThrow(ForbiddenError);
    world.allows = () => true;
    await expect(world.lathe.workspace({ name: 'nowhere' })).rejects.toThrow(NotFoundError);
  });

  test('F11: a path means the same to SDK, API and the one rule', async () => {
    const w = await world.open();
    const segment = fc.constantFrom('a', 'b', '..', '.', '', 'workspace', 'é', ' ', 'x'.repeat(256));
    const path = fc.array(segment, { minLength: 1, maxLength: 4 }).map((s) => s.join('/'));
    await fc.assert(
      fc.asyncProperty(path, async (given) => {
        const rule = normalisePath(given);
        const answer = await w.ask('PUT', 'files', { query: { path: given, dryRun: true }, body: 'x' }).then(
          ({ body }) => (JSON.parse(body.toString()) as { files: { paths: string[] } }).files.paths[0],
          (error: { reason: string }) => error.reason,
        );
        if ('refused' in rule) {
          expect(answer).toBe('PathRefused');
          expect(() => w.resolvePath(given)).toThrow(RefusedError);
        } else {
          expect(w.resolvePath(given)).toBe(rule.path);
          expect(answer).toBe(rule.path);
        }
      }),
      { numRuns: 200 },
    );
  });

  test('F6: a connection that is cut at any moment loses nothing and doubles nothing', async () => {
    const w = await world.open({ effective: LARGE });
    for (const bytes of [100, 2_000, 30_000, 65_000]) {
      world.cutAfter(bytes);
      await w.write(`/f${bytes}`, randomBytes(40_000));
    }
    expect((await w.versions()).length).toBe(4);
    const content = randomBytes(20 << 20);
    world.cutAfter(11 << 20);
    const seen: number[] = [];
    await w.write('/large', content, { onProgress: ({ doneBytes }) => seen.push(doneBytes) });
    expect(seen).toEqual([8 << 20, 16 << 20, 20 << 20]);
    world.cutAfter(9 << 20);
    expect((await w.read('/large')).equals(content)).toBe(true);
  });

  test('values', async () => {
    const w = await world.open();
    await w.kv.put('a/1', 'x');
    expect([await w.kv.get('a/1'), await w.kv.get('b')]).toEqual([Buffer.from('x'), undefined]);
    const keys = [];
    for await (const { key } of w.kv.list('a/')) keys.push(key);
    expect(keys).toEqual(['a/1']);
    expect([await w.kv.delete('a/1'), await w.kv.delete('a/1')]).toEqual([true, false]);
  });
});

describe('folders', () => {
  test('F1, F2, F3: go up and come down as they are: links, bits, odd names, empty folders, large files', async () => {
    const w = await world.open({ effective: LARGE });
    const from = join(world.folder, 'from');
    await mkdir(join(from, 'deep/er'), { recursive: true });
    await mkdir(join(from, 'empty'));
    await mkdir(join(from, 'node_modules/x'), { recursive: true });
    await writeFile(join(from, 'node_modules/x/y'), 'ignored');
    await writeFile(join(from, 'run.sh'), '#!/bin/sh');
    await chmod(join(from, 'run.sh'), 0o755);
    const odd = ['-rf', ' a\n"b"', '🦀 é e\u0301', 'x'.repeat(255), '%2e%2e', 'a\\b'];
    for (const name of odd) await writeFile(join(from, 'deep/er', name), name);
    for (const [name, target] of [
      ['to-file', 'run.sh'],
      ['to-folder', 'deep'],
      ['dangling', 'nowhere'],
      ['absolute', '/etc/passwd'],
      ['loop', 'loop'],
    ] as const)
      await symlink(target, join(from, name));
    const large = randomBytes(9 << 20);
    await writeFile(join(from, 'large'), large);
    await w.upload(from, { to: '/in', ignore: ['**/node_modules/**'] });
    const to = join(world.folder, 'to');
    expect(await w.download(to, { from: '/in' })).toMatchObject({ files: 9 + odd.length - 1 });
    for (const name of odd) expect(await readFile(join(to, 'deep/er', name), 'utf8')).toBe(name);
    expect((await lstat(join(to, 'run.sh'))).mode & 0o111).toBe(0o111);
    expect((await readFile(join(to, 'large'))).equals(large)).toBe(true);
    expect(await readlink(join(to, 'absolute'))).toBe('/etc/passwd');
    expect(await readlink(join(to, 'loop'))).toBe('loop');
    expect((await lstat(join(to, 'empty'))).isDirectory()).toBe(true);
    await expect(lstat(join(to, 'node_modules'))).rejects.toThrow('ENOENT');
  });

  test('F4: nothing is written through a link that stands where a folder should', async () => {
    const w = await world.open();
    await w.write('/out/x', 'mine');
    const [to, elsewhere] = [join(world.folder, 'f4'), join(world.folder, 'elsewhere')];
    await mkdir(to);
    await mkdir(elsewhere);
    await symlink(elsewhere, join(to, 'out'));
    await expect(w.download(to)).rejects.toThrow(ConflictError);
    await expect(lstat(join(elsewhere, 'x'))).rejects.toThrow('ENOENT');
  });
});

test.for([
  ['billing', 'billing'],
  ['Q3 report (final)', /^q3-report-final-[0-9a-f]{8}$/],
  ['日本', /^w-[0-9a-f]{8}$/],
  ['a.b', /^a-b-[0-9a-f]{8}$/],
  ['x'.repeat(80), /^x{41}-[0-9a-f]{8}$/],
] as const)('SD1: %j is a workspace by the name %s', ([given, name]) => {
  const made = workspaceName(given);
  if (typeof name === 'string') expect(made).toBe(name);
  else expect(made).toMatch(name);
  expect(made.length).toBeLessThanOrEqual(50);
});
