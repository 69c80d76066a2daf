/** Files by the live API, without any pod. */
import { createHash, randomBytes } from 'node:crypto';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, writeFileSync, mkdirSync, symlinkSync, chmodSync, lstatSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { KV_LIMITS } from '../../../proto/live/types.ts';
import { useApi, type Ask } from './world.ts';
import type { WorkspaceRow } from '../../../operator/store/rows.ts';

const world = useApi();
const sha = (content: Buffer | string) => createHash('sha256').update(content).digest('hex');
const put = (w: WorkspaceRow, path: string, body: Buffer | string, more: Ask = {}) =>
  world.ask('PUT', w, 'files', { ...more, query: { path, ...more.query }, body });
const get = (w: WorkspaceRow, path: string, more: Ask = {}) =>
  world.ask('GET', w, 'files', { ...more, query: { path, ...more.query } });
const paths = async (w: WorkspaceRow, query: Record<string, string> = {}) =>
  ((await world.ask('GET', w, 'files', { query })).json().items ?? []).map((item) => item['path']);

describe('one file', () => {
  test('is written and read back byte for byte, with its hash, mode and version', async () => {
    const w = await world.workspace();
    const content = randomBytes(300_000);
    const written = await put(w, '/bin/x', content, { query: { executable: 'true' } });
    expect([written.code, written.json()]).toMatchObject([
      201,
      { kind: 'WriteResult', version: 1, committed: true, files: { created: 1, paths: ['/bin/x'] }, refused: [] },
    ]);
    const read = await get(w, '/workspace/bin/x');
    expect(read.body.equals(content)).toBe(true);
    expect(read.headers).toMatchObject({
      etag: `"${sha(content)}"`,
      'lathe-mode': '0755',
      'lathe-kind': 'regular',
      'lathe-file-version': '1',
      'content-length': '300000',
    });
    const head = await world.ask('HEAD', w, 'files', { query: { path: '/bin/x' } });
    expect([head.code, head.body.length, head.headers['content-length']]).toEqual([200, 0, '300000']);
    const part = await get(w, '/bin/x', { headers: { range: 'bytes=262000-262999' } });
    expect([part.code, part.headers['content-range'], part.body.equals(content.subarray(262_000, 263_000))]).toEqual([
      206,
      'bytes 262000-262999/300000',
      true,
    ]);
    expect((await get(w, '/bin/x', { headers: { range: 'bytes=300000-' } })).code).toBe(416);
    expect((await get(w, '/bin/x', { headers: { 'if-none-match': `"${sha(content)}"` } })).code).toBe(304);
    // F2: the bit stays where nothing is said of it.
    await put(w, '/bin/x', 'other');
    expect((await get(w, '/bin/x')).headers['lathe-mode']).toBe('0755');
    expect((await get(w, '/bin/x', { query: { version: '1' } })).body.equals(content)).toBe(true);
  });

  test('a part of a content that was replaced meanwhile is not taken for one of the content before', async () => {
    const w = await world.workspace();
    const put = async (body: string) => await world.ask('PUT', w, 'files', { query: { path: '/a' }, body });
    await put('first content');
    const { etag = '' } = (await world.ask('HEAD', w, 'files', { query: { path: '/a' } })).headers;
    const rest = { range: 'bytes=6-', 'if-range': etag };
    const same = await world.ask('GET', w, 'files', { query: { path: '/a' }, headers: rest });
    expect([same.code, same.body.toString()]).toEqual([206, 'content']);
    await put('another content');
    const other = await world.ask('GET', w, 'files', { query: { path: '/a' }, headers: rest });
    expect([other.code, other.body.toString()]).toEqual([200, 'another content']);
  });

  test('what one tenant holds is bounded, and comes in its turn', async () => {
    const w = await world.workspace();
    const body = randomBytes(900_000);
    const codes = await Promise.all(
      Array.from({ length: 60 }, (_, i) => world.ask('PUT', w, 'files', { query: { path: `/${i % 3}` }, body })),
    );
    expect(new Set(codes.map(({ code }) => code))).toEqual(new Set([200, 201]));
  });

  test('If-Match, If-None-Match and Idempotency-Key hold', async () => {
    const w = await world.workspace();
    const first = { headers: { 'if-none-match': '*', 'idempotency-key': 'once' } };
    expect((await put(w, '/a', '1', first)).code).toBe(201);
    expect((await put(w, '/a', '2', { headers: { 'if-none-match': '*' } })).json()).toMatchObject({
      kind: 'Status',
      reason: 'PreconditionFailed',
      code: 412,
    });
    expect((await put(w, '/a', '2', { headers: { 'if-match': `"${sha('1')}"` } })).code).toBe(200);
    expect((await put(w, '/a', '3', { headers: { 'if-match': `"${sha('1')}"` } })).code).toBe(412);
    expect((await put(w, '/a', '1', first)).json()).toMatchObject({ version: 1, committed: true });
    expect((await put(w, '/a', '9', first)).json()).toMatchObject({ reason: 'Conflict', code: 409 });
    expect((await get(w, '/a')).body.toString()).toBe('2');
  });

  test('is removed; what is not there is NotFound, what is a folder says so', async () => {
    const w = await world.workspace();
    await put(w, '/d/a', '1');
    expect((await world.ask('DELETE', w, 'files', { query: { path: '/d' } })).json()).toMatchObject({
      reason: 'Conflict',
    });
    expect((await get(w, '/d')).json()).toMatchObject({
      reason: 'NotFound',
      message: '"/d" is a folder; list it with prefix=/d/',
    });
    expect((await world.ask('DELETE', w, 'files', { query: { path: '/d', recursive: 'true' } })).code).toBe(200);
    expect(await paths(w)).toEqual([]);
    expect((await world.ask('DELETE', w, 'files', { query: { path: '/d' } })).code).toBe(404);
  });

  test('a dry run writes nothing and says what it would', async () => {
    const w = await world.workspace();
    expect((await put(w, '/a', '1', { query: { dryRun: 'true' } })).json()).toMatchObject({
      dryRun: true,
      committed: false,
      version: 0,
      files: { created: 1 },
    });
    expect(await paths(w)).toEqual([]);
  });

  test('a file over the limit is refused with the limit and the size, and nothing is written', async () => {
    const w = await world.workspace();
    expect((await put(w, '/big', Buffer.alloc((1 << 20) + 1))).json()).toMatchObject({
      reason: 'FileTooLarge',
      code: 413,
      message: '"/big" has 1048577 bytes, files.maxFileSize is 1Mi',
    });
  });

  test.for(['/workspace/../../../etc/x', 'a/../b', '..', '', '/', 'x'.repeat(256), '/a\0b'])(
    'F11: %j is refused as the one rule says, by every way of asking',
    async (path) => {
      const w = await world.workspace();
      const answers = [
        await put(w, path, 'x'),
        await get(w, path),
        await world.ask('DELETE', w, 'files', { query: { path } }),
        await world.ask('POST', w, 'files', { body: JSON.stringify({ operations: [{ op: 'mkdir', path }] }) }),
      ];
      expect(answers.map((a) => [a.code, a.json()['reason']])).toEqual(answers.map(() => [400, 'PathRefused']));
    },
  );

  test.for(['//a', '/./a', 'a', '/workspace/a', 'a/'])('F11: %j is /a', async (path) => {
    const w = await world.workspace();
    await put(w, path, 'x');
    expect(await paths(w)).toEqual(['/a']);
  });

  test.for(['/%2e%2e/a', '/a\\b', '/ a\n"b\'', '/-rf', '/🦀/é', '/e\u0301', `/${'x'.repeat(255)}`])(
    'F3: %j is a name like any other and comes back byte for byte',
    async (path) => {
      const w = await world.workspace();
      await put(w, path, 'x');
      expect([await paths(w), (await get(w, path)).body.toString()]).toEqual([[path], 'x']);
    },
  );
});

describe('several files', () => {
  test('are listed in one order, by prefix and glob, in pages of one version', async () => {
    const w = await world.workspace();
    const names = [...Array(25).keys()].map((i) => `/p/${String(i).padStart(2, '0')}.${i % 2 === 0 ? 'ts' : 'js'}`);
    for (const name of names) await put(w, name, name);
    await put(w, '/q', 'x');
    const seen: unknown[] = [];
    let cursor: string | undefined;
    do {
      const page = (
        await world.ask('GET', w, 'files', {
          query: { prefix: '/p/', limit: '10', ...(cursor === undefined ? {} : { continue: cursor }) },
        })
      ).json();
      seen.push(...(page.items ?? []).map((item) => item['path']));
      // Written in between: not of this listing.
      await put(w, `/p/zz${seen.length}`, 'x');
      cursor = page.metadata?.continue;
    } while (cursor !== undefined);
    expect(seen).toEqual(names);
    expect(await paths(w, { glob: '**/*.ts', version: '26' })).toEqual(names.filter((n) => n.endsWith('.ts')));
  });

  test('rename, copy, chmod, symlink and mkdir are one version, or none', async () => {
    const w = await world.workspace();
    await put(w, '/a/1', 'one');
    await put(w, '/a/2', 'two');
    const post = (operations: object[]) => world.ask('POST', w, 'files', { body: JSON.stringify({ operations }) });
    expect(
      (
        await post([
          { op: 'rename', from: '/a', to: '/b' },
          { op: 'copy', from: '/a/1', to: '/c' },
          { op: 'symlink', path: '/l', target: '/etc/passwd' },
          { op: 'mkdir', path: '/empty' },
        ])
      ).json(),
    ).toMatchObject({ version: 3, committed: true });
    expect(await paths(w)).toEqual(['/b/1', '/b/2', '/c', '/empty', '/l']);
    // F1, F4: a link is its target, nobody follows it.
    const link = await get(w, '/l');
    expect([link.body.toString(), link.headers['lathe-kind']]).toEqual(['/etc/passwd', 'symlink']);
    expect((await put(w, '/l/x', 'x')).json()).toMatchObject({ reason: 'Conflict' });
    expect((await post([{ op: 'chmod', path: '/c', executable: true }])).code).toBe(200);
    expect((await post([{ op: 'rename', from: '/c', to: '/b/1' }])).json()).toMatchObject({ reason: 'Conflict' });
    expect(
      (
        await post([
          { op: 'mkdir', path: '/x' },
          { op: 'rename', from: '/nowhere', to: '/y' },
        ])
      ).code,
    ).toBe(404);
    expect(await paths(w)).toEqual(['/b/1', '/b/2', '/c', '/empty', '/l']);
    expect((await post([{ op: 'explode', path: '/x' }])).json()).toMatchObject({ reason: 'BadRequest' });
  });

  test('patterns and prefixes mean the same with and without /workspace; no name is left out of its folder', async () => {
    const w = await world.workspace();
    for (const path of ['/src/a', '/src/\u{10ffff}b', '/other'])
      await world.ask('PUT', w, 'files', { query: { path }, body: 'x' });
    const listed = async (query: Record<string, string>) =>
      (await world.ask('GET', w, 'files', { query })).json().items?.map(({ path }) => path);
    const src = ['/src/a', '/src/\u{10ffff}b'];
    for (const glob of ['/src/**', 'src/**', '/workspace/src/**']) expect(await listed({ glob }), glob).toEqual(src);
    for (const prefix of ['/src/', 'src/', '/workspace/src/']) expect(await listed({ prefix }), prefix).toEqual(src);
    for (const prefix of ['', '/', '/workspace', '/workspace/'])
      expect(await listed({ prefix }), prefix).toHaveLength(3);
  });

  test('what is written while it is renamed or gets its bit is not undone by that', async () => {
    const w = await world.workspace();
    const put = (path: string, body: string) => world.ask('PUT', w, 'files', { query: { path }, body });
    await put('/d/a', 'first');
    const store = world.store as { ground: typeof world.store.ground };
    const { ground } = store;
    /** What others write right after the API has looked. */
    const meanwhile = async (path: string, body: string, operation: object) => {
      store.ground = async (...args) => {
        const seen = await ground(...args);
        if (!args[1].includes(path)) return seen;
        store.ground = ground;
        await put(path, body);
        return seen;
      };
      return (await world.ask('POST', w, 'files', { body: JSON.stringify({ operations: [operation] }) })).json();
    };
    const refused = { reason: 'PreconditionFailed', code: 412 };
    expect(await meanwhile('/d/a', '2', { op: 'chmod', path: '/d/a', executable: true })).toMatchObject(refused);
    expect(await meanwhile('/d/a', '3', { op: 'rename', from: '/d/a', to: '/b' })).toMatchObject(refused);
    expect(await meanwhile('/c', 'kept', { op: 'copy', from: '/d/a', to: '/c' })).toMatchObject(refused);
    expect((await world.ask('GET', w, 'files', { query: { path: '/c' } })).body.toString()).toBe('kept');
    expect((await world.ask('GET', w, 'files', { query: { path: '/d/a' } })).body.toString()).toBe('3');
    expect(await paths(w)).toEqual(['/c', '/d/a']);
  });

  test('F1, F2: a tree goes in and comes back by tar, links and bits as they were', async () => {
    const w = await world.workspace();
    const from = mkdtempSync(join(tmpdir(), 'lathe-tar-'));
    mkdirSync(join(from, 'src/empty'), { recursive: true });
    writeFileSync(join(from, 'src/a.txt'), 'hello');
    writeFileSync(join(from, 'run.sh'), '#!/bin/sh\n');
    chmodSync(join(from, 'run.sh'), 0o755);
    writeFileSync(join(from, 'big.bin'), randomBytes(1_000_000));
    symlinkSync('../etc/passwd', join(from, 'src/link'));
    const tar = execFileSync('tar', ['-C', from, '-cf', '-', '.'], { maxBuffer: 1 << 26 });
    const written = await world.ask('PUT', w, 'archive', { body: tar, query: { prefix: '/in' } });
    expect(written.json()).toMatchObject({ version: 1, committed: true, files: { created: 4 }, refused: [] });
    expect(await paths(w)).toEqual(['/in/big.bin', '/in/run.sh', '/in/src/a.txt', '/in/src/empty', '/in/src/link']);
    const back = await world.ask('GET', w, 'archive', { query: { prefix: '/in/' } });
    const to = mkdtempSync(join(tmpdir(), 'lathe-tar-'));
    execFileSync('tar', ['-C', to, '-xf', '-'], { input: back.body });
    expect(readFileSync(join(to, 'in/big.bin')).equals(readFileSync(join(from, 'big.bin')))).toBe(true);
    expect(lstatSync(join(to, 'in/run.sh')).mode & 0o111).not.toBe(0);
    expect(lstatSync(join(to, 'in/src/link')).isSymbolicLink()).toBe(true);
    expect(lstatSync(join(to, 'in/src/empty')).isDirectory()).toBe(true);
  });

  test('F11: a tar with a path that names a parent, or with a device, is refused as a whole', async () => {
    const w = await world.workspace();
    const from = mkdtempSync(join(tmpdir(), 'lathe-tar-'));
    writeFileSync(join(from, 'a'), 'x');
    const evil = execFileSync('tar', ['-C', from, '-cf', '-', '--transform', 's,^a,../../etc/x,', '-P', 'a']);
    const device = execFileSync('tar', ['-cf', '-', '-P', '/dev/null']);
    for (const body of [evil, device])
      expect((await world.ask('PUT', w, 'archive', { body })).json()).toMatchObject({
        reason: 'PathRefused',
        code: 400,
      });
    expect((await world.ask('PUT', w, 'archive', { body: randomBytes(5_000) })).json()).toMatchObject({ code: 400 });
    expect(await paths(w)).toEqual([]);
  });

  test('a content that can not be read breaks an archive off, and nothing else', async () => {
    const w = await world.workspace();
    await world.ask('PUT', w, 'files', { query: { path: '/a' }, body: randomBytes(900_001) });
    await world.store.database.transaction(async (query) => {
      // What the foreign keys would not let happen.
      await query('no-triggers', 'SET LOCAL session_replication_role = replica', []);
      await query('lose', 'DELETE FROM blob WHERE size = 900001', []);
    });
    await expect(world.ask('GET', w, 'archive')).rejects.toThrow();
    expect(await paths(w)).toEqual(['/a']);
  });

  test('names of a tar are bytes: what is no UTF-8 is refused, what is stays as it is', async () => {
    const w = await world.workspace();
    const tar = (name: Buffer, format: string) => {
      const from = mkdtempSync(join(tmpdir(), 'lathe-tar-'));
      writeFileSync(Buffer.concat([Buffer.from(`${from}/`), name]), 'x');
      return execFileSync('tar', ['-C', from, `--format=${format}`, '-cf', '-', '.']);
    };
    const long = `${'long-'.repeat(30)}é`;
    for (const format of ['gnu', 'pax', 'ustar'])
      expect(
        (await world.ask('PUT', w, 'archive', { body: tar(Buffer.from('naïve'), format) })).json(),
        format,
      ).toMatchObject({ refused: [] });
    for (const format of ['gnu', 'pax']) await world.ask('PUT', w, 'archive', { body: tar(Buffer.from(long), format) });
    expect(await paths(w)).toEqual([`/${long}`, '/naïve']);
    const broken = Buffer.from([0x61, 0xff, 0x62]);
    for (const format of ['gnu', 'ustar'])
      expect((await world.ask('PUT', w, 'archive', { body: tar(broken, format) })).json(), format).toMatchObject({
        reason: 'PathRefused',
      });
    expect(await paths(w)).toHaveLength(2);
  });

  test('a dry run of an archive says what it would do, of large files too', async () => {
    const w = await world.workspace();
    const from = mkdtempSync(join(tmpdir(), 'lathe-tar-'));
    writeFileSync(join(from, 'small'), 'x');
    writeFileSync(join(from, 'large'), randomBytes(3_000_000));
    const body = execFileSync('tar', ['-C', from, '-cf', '-', '.'], { maxBuffer: 1 << 26 });
    expect((await world.ask('PUT', w, 'archive', { body, query: { dryRun: 'true' } })).json()).toMatchObject({
      committed: false,
      files: { created: 1 },
      refused: [{ path: '/large', reason: 'FileTooLarge' }],
    });
  });

  test('F6: a large file comes in parts, again after a cut, and is there only when it is complete', async () => {
    const w = await world.workspace({
      effective: { files: { ...(await world.workspace()).effective.files, maxFileSize: '32Mi', maxTotalSize: '64Mi' } },
    });
    const content = randomBytes(10 * 1024 * 1024);
    const begun = await world.ask('POST', w, 'files', { query: { path: '/big', uploads: 'true' } });
    const upload = String(begun.json()['id']);
    const part = (offset: number, end: number) =>
      world.ask('PUT', w, 'files', { query: { upload, offset: String(offset) }, body: content.subarray(offset, end) });
    expect((await part(0, 6_000_000)).json()).toMatchObject({ offset: 6_000_000 });
    expect((await part(6_000_001, 7_000_000)).json()).toMatchObject({ reason: 'Conflict' });
    // The answer was lost: the same part again, and more of it.
    expect((await part(4_000_000, 8_000_000)).json()).toMatchObject({ offset: 8_000_000 });
    expect((await get(w, '/big')).code).toBe(404);
    expect((await world.ask('GET', w, 'files', { query: { upload } })).json()).toMatchObject({ offset: 8_000_000 });
    expect((await part(8_000_000, content.length)).json()).toMatchObject({ offset: content.length });
    const complete = () =>
      world.ask('POST', w, 'files', {
        query: { upload, complete: 'true', sha256: sha(content) },
        headers: { 'idempotency-key': 'complete' },
      });
    expect((await complete()).json()).toMatchObject({ version: 1, committed: true });
    expect((await complete()).json()).toMatchObject({ version: 1, committed: true });
    expect((await get(w, '/big')).headers.etag).toBe(`"${sha(content)}"`);
    expect((await world.ask('GET', w, 'files', { query: { upload } })).code).toBe(404);
  });
});

describe('history', () => {
  test('versions, diff, patch and restore tell what was and bring it back', async () => {
    const w = await world.workspace();
    await put(w, '/a.txt', 'one\ntwo\nthree\n');
    await put(w, '/b.bin', Buffer.from([0, 1, 2]));
    await put(w, '/a.txt', 'one\nTWO\nthree\n', { user: 'bob' });
    await world.ask('DELETE', w, 'files', { query: { path: '/b.bin' } });
    const versions = (await world.ask('GET', w, 'versions', { query: { path: '/a.txt' } })).json();
    expect(versions.items).toMatchObject([
      { version: 3, origin: 'api', actor: 'bob', changed: 1 },
      { version: 1, origin: 'api', actor: 'ada', created: 1 },
    ]);
    expect((await world.ask('GET', w, 'diff', { query: { from: '1' } })).json()).toMatchObject({
      from: 1,
      to: 4,
      items: [{ path: '/a.txt', change: 'changed' }],
    });
    const patch = (
      await world.ask('GET', w, 'diff', { query: { from: '2', to: '4', format: 'patch' } })
    ).body.toString();
    expect(patch).toBe(
      'diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n' +
        'diff --git a/b.bin b/b.bin\ndeleted file mode 100644\nBinary files a/b.bin and /dev/null differ\n',
    );
    const restore = (body: object) => world.ask('POST', w, 'restore', { body: JSON.stringify(body) });
    expect((await restore({ version: 2, dryRun: true })).json()).toMatchObject({
      committed: false,
      files: { created: 1, changed: 1 },
    });
    expect((await restore({ version: 2, paths: ['/b.bin'] })).json()).toMatchObject({
      version: 5,
      files: { created: 1, changed: 0 },
    });
    expect((await restore({ version: 2 })).json()).toMatchObject({ version: 6, files: { changed: 1 } });
    expect((await get(w, '/a.txt')).body.toString()).toBe('one\ntwo\nthree\n');
    expect((await restore({ version: 0 })).json()).toMatchObject({ version: 7, files: { deleted: 2 } });
    expect((await restore({ version: 99 })).json()).toMatchObject({ reason: 'NotFound' });
    const log = (await world.ask('GET', w, 'log')).body.toString().trim().split('\n');
    expect(log.map((line) => (JSON.parse(line) as { payload: { origin: string } }).payload.origin)).toEqual([
      ...Array<string>(4).fill('api'),
      ...Array<string>(3).fill('restore'),
    ]);
  });

  test('values beside the files', async () => {
    const w = await world.workspace();
    const kv = (method: string, key: string, more: Ask = {}) => world.ask(method, w, 'kv', { ...more, query: { key } });
    expect((await kv('PUT', 'a', { body: '1', headers: { 'if-none-match': '*' } })).code).toBe(204);
    expect((await kv('PUT', 'a', { body: '2', headers: { 'if-none-match': '*' } })).code).toBe(412);
    expect((await kv('PUT', 'a', { body: '2', headers: { 'if-match': `"${sha('1')}"` } })).code).toBe(204);
    expect((await kv('GET', 'a')).body.toString()).toBe('2');
    expect((await world.ask('GET', w, 'kv', { query: { prefix: 'a' } })).json().items).toMatchObject([
      { key: 'a', size: 1 },
    ]);
    expect((await kv('DELETE', 'a', { headers: { 'if-match': `"${sha('1')}"` } })).code).toBe(412);
    expect([(await kv('DELETE', 'a')).code, (await kv('DELETE', 'a')).code]).toEqual([204, 404]);
  });

  test('a value too: a dry run writes nothing, an Idempotency-Key holds', async () => {
    const w = await world.workspace();
    const put = (body: string, more: Record<string, string> = {}, dryRun = 'false') =>
      world.ask('PUT', w, 'kv', { body, query: { key: 'a', dryRun }, headers: more });
    const value = async () => (await world.ask('GET', w, 'kv', { query: { key: 'a' } })).body.toString();
    expect((await put('1', {}, 'true')).code).toBe(204);
    expect((await world.ask('GET', w, 'kv', { query: { key: 'a' } })).code).toBe(404);
    expect((await put('1', { 'idempotency-key': 'k' })).code).toBe(204);
    expect((await put('2')).code).toBe(204);
    expect((await put('1', { 'idempotency-key': 'k' })).code).toBe(204);
    expect(await value()).toBe('2');
    expect((await put('3', { 'idempotency-key': 'k' })).json()).toMatchObject({ reason: 'Conflict', code: 409 });
    expect((await put('1', { 'if-match': `"${sha('1')}"` }, 'true')).code).toBe(412);
    const remove = () =>
      world.ask('DELETE', w, 'kv', { query: { key: 'a' }, headers: { 'idempotency-key': 'remove' } });
    expect([(await remove()).code, (await remove()).code]).toEqual([204, 204]);
  });

  test('FW5: values are counted and weighed', async () => {
    const w = await world.workspace();
    await world.store.database.query(
      'many-values',
      `INSERT INTO kv (workspace, key, value, sha256) SELECT $1, 'v' || n, '', sha256('') FROM generate_series(1, $2) n`,
      [w.id, KV_LIMITS.keys],
    );
    const put = (key: string) => world.ask('PUT', w, 'kv', { body: 'x', query: { key } });
    expect((await put('one-more')).json()).toMatchObject({ reason: 'WorkspaceFull', code: 413 });
    expect((await put('v1')).code).toBe(204);
    await world.store.database.query(
      'large-value',
      `UPDATE kv SET value = convert_to(repeat('x', $2), 'UTF8') WHERE workspace = $1 AND key = 'v2'`,
      [w.id, KV_LIMITS.bytes],
    );
    expect((await put('v3')).json()).toMatchObject({ reason: 'WorkspaceFull', code: 413 });
  });

  test('open uploads are counted and weighed too, and none is a dry run', async () => {
    const w = await world.workspace();
    const begin = (dryRun = 'false') =>
      world.ask('POST', w, 'files', { query: { path: '/a', uploads: 'true', dryRun } });
    expect((await begin('true')).code).toBe(400);
    const part = (id: unknown) =>
      world.ask('PUT', w, 'files', { query: { upload: String(id), offset: '0' }, body: randomBytes(1_000_000) });
    const codes: number[] = [];
    for (let i = 0; i < 9; i += 1) codes.push((await part((await begin()).json()['id'])).code);
    // files.maxTotalSize is 8Mi.
    expect(codes).toEqual([...Array<number>(8).fill(200), 413]);
    await world.store.database.query(
      'many-uploads',
      `INSERT INTO upload (id, workspace, path, actor) SELECT gen_random_uuid(), $1, '/a', 'a' FROM generate_series(1, 91)`,
      [w.id],
    );
    expect((await begin()).json()).toMatchObject({ reason: 'QuotaExceeded', code: 403 });
  });
});
