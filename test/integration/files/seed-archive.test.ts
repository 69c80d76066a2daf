/** Seeds from archives: honest ones of three formats, hostile ones of every kind that we know, and broken ones. */
import { createHash } from 'node:crypto';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { SeedSpec } from '../../../crds/types.ts';
import type { WorkspaceRow } from '../../../operator/store/rows.ts';
import {
  startArchiveServer,
  tarGzOf,
  tarOf,
  zipOf,
  type ArchiveServer,
  type TarEntry,
  type ZipEntry,
} from '../../fakes/archives.ts';
import { useSeeds } from './world.ts';

const world = useSeeds();
let server: ArchiveServer;
beforeAll(async () => {
  server = await startArchiveServer();
});
afterAll(() => server?.[Symbol.asyncDispose]());

const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');
const failed = (row: WorkspaceRow) => `${row.seed_state}: ${row.seed_error ?? ''}`;
type Archive = NonNullable<SeedSpec['archive']>;
let served = 0;

function published(bytes: Buffer, ending: string): string {
  const path = `/${(served += 1)}${ending}`;
  server.serve(path, bytes);
  return `http://git.test:${server.port}${path}`;
}
async function seededFrom(
  bytes: Buffer,
  ending: string,
  more: Partial<Archive> = {},
  files: NonNullable<Parameters<typeof world.seeded>[1]>['files'] = {},
): Promise<WorkspaceRow> {
  const workspace = await world.seeded(
    { archive: { url: published(bytes, ending), sha256: sha256(bytes), ...more } },
    { files },
  );
  return await world.attempt(workspace);
}
const tarGz = async (entries: readonly TarEntry[], more: Partial<Archive> = {}, files = {}) =>
  await seededFrom(await tarGzOf(entries), '.tar.gz', more, files);
const zip = (entries: readonly ZipEntry[], more: Partial<Archive> = {}, files = {}) =>
  seededFrom(zipOf(entries), '.zip', more, files);
const listing = async (row: WorkspaceRow) =>
  (await world.tree(row)).map(
    (e) => `${e.path} ${e.kind}${e.executable ? ' x' : ''}${e.target === null ? '' : ` -> ${e.target}`}`,
  );

const TREE: readonly TarEntry[] = [
  { name: 'top/', type: 'directory' },
  { name: 'top/empty/', type: 'directory' },
  { name: 'top/run.sh', mode: 0o4755, content: Buffer.from('#!/bin/sh\n') },
  { name: 'top/a', mode: 0o600, content: Buffer.from('a') },
  { name: 'top/hard', type: 'link', linkname: 'top/a' },
  { name: 'top/large', mode: 0o644, content: Buffer.alloc(700_000, 'large ') },
  { name: 'top/out', type: 'symlink', linkname: '/etc/passwd' },
  { name: 'top/up', type: 'symlink', linkname: '../../..' },
  { name: `top/ünï 💡 -n\n${'x'.repeat(200)}`, mode: 0o644, content: Buffer.from('odd') },
];
const LISTED = [
  '/a regular',
  '/empty directory',
  '/hard regular',
  '/large regular',
  '/out symlink -> /etc/passwd',
  '/run.sh regular x',
  '/up symlink -> ../../..',
  `/ünï 💡 -n\n${'x'.repeat(200)} regular`,
];

describe('an archive becomes version 1', () => {
  test.for([
    ['tar.gz', '.tgz', gzipSync],
    ['tar.zst', '.tar.zst', zstdCompressSync],
  ] as const)('F1, F2, F3, F10: a %s', async ([, ending, compress]) => {
    const row = await seededFrom(compress(await tarOf(TREE)), ending, { stripComponents: 1 });
    expect(failed(row)).toBe('Done: ');
    expect(await listing(row)).toEqual(LISTED);
    expect((await world.read(row, '/large')).equals(Buffer.alloc(700_000, 'large '))).toBe(true);
    const byPath = new Map((await world.tree(row)).map((e) => [e.path, e]));
    expect(byPath.get('/hard')?.sha256).toEqual(byPath.get('/a')?.sha256);
    expect((await world.events(row))[0]).toMatchObject({
      type: 'files.committed',
      payload: { origin: 'seed', created: 7, source: { archive: { url: expect.any(String) } } },
    });
    expect(await world.leftovers()).toEqual([]);
  });

  test('F1, F2, F3: a zip, its links and modes, deflated and stored', async () => {
    const row = await zip(
      [
        { name: 'top/', mode: 0o040755 },
        { name: 'top/run.sh', mode: 0o104755, content: Buffer.from('#!/bin/sh\n') },
        { name: 'top/a', mode: 0o100600, content: Buffer.from('a'), stored: true },
        { name: 'top/empty/', mode: 0o040755 },
        { name: 'top/large', content: Buffer.alloc(700_000, 'large ') },
        { name: 'top/out', mode: 0o120777, content: Buffer.from('/etc/passwd') },
        { name: 'top/ünï 💡', content: Buffer.from('odd') },
      ],
      { stripComponents: 1 },
    );
    expect(failed(row)).toBe('Done: ');
    expect(await listing(row)).toEqual([
      '/a regular',
      '/empty directory',
      '/large regular',
      '/out symlink -> /etc/passwd',
      '/run.sh regular x',
      '/ünï 💡 regular',
    ]);
    expect((await world.read(row, '/large')).equals(Buffer.alloc(700_000, 'large '))).toBe(true);
  });

  test('F7: 900 small files, and a format that only the spec knows', async () => {
    const entries = Array.from({ length: 900 }, (_, i) => ({ name: `f/${i}`, content: Buffer.from(`file ${i}`) }));
    const bytes = await tarGzOf(entries);
    const row = await seededFrom(bytes, '/download?id=1', { format: 'tar.gz' });
    expect([failed(row), row.files]).toEqual(['Done: ', 900n]);
    const unnamed = await seededFrom(bytes, '/download');
    expect(failed(unnamed)).toMatch(/^Failed: archive.url does not end in .*archive.format/);
  });

  test('`tar -C folder .`: the folder itself is no entry, and a path that comes twice is what it was last', async () => {
    const row = await tarGz([
      { name: './', type: 'directory' },
      { name: './a', content: Buffer.from('first') },
      { name: 'a', content: Buffer.from('second') },
      { name: '/etc/absolute', content: Buffer.from('inside') },
    ]);
    expect(await listing(row)).toEqual(['/a regular', '/etc/absolute regular']);
    expect((await world.read(row, '/a')).toString()).toBe('second');
  });
});

describe('F11, F4, F10, F12: refused whole, and nothing is committed', () => {
  const x = Buffer.from('x');
  test.for<[why: string, entries: TarEntry[], says: RegExp]>([
    [
      'a parent',
      [
        { name: 'ok', content: x },
        { name: '../evil', content: x },
      ],
      /"..\/evil" has a .. segment/,
    ],
    ['a parent inside', [{ name: 'a/../b', content: x }], /has a .. segment/],
    ['a parent that strips away', [{ name: '../../etc/x', content: x }], /has a .. segment/],
    ['a parent as a link', [{ name: 'a/../../l', type: 'symlink', linkname: 'x' }], /has a .. segment/],
    ['a parent as a folder', [{ name: '..', type: 'directory' }], /has a .. segment/],
    ['a hard link to a parent', [{ name: 'h', type: 'link', linkname: '../../etc/passwd' }], /has a .. segment/],
    [
      'a hard link to what is not there',
      [{ name: 'h', type: 'link', linkname: '/etc/passwd' }],
      /is a hard link to "\/etc\/passwd"/,
    ],
    [
      'a file below a link',
      [
        { name: 'out', type: 'symlink', linkname: '/etc' },
        { name: 'out/x', content: x },
      ],
      /"\/out\/x" is below "\/out", which is a symbolic link/,
    ],
    [
      'a file below a file',
      [
        { name: 'a', content: x },
        { name: 'a/b', content: x },
      ],
      /is below "\/a", which is a file/,
    ],
    [
      'a file and a folder',
      [
        { name: 'a', content: x },
        { name: 'a/', type: 'directory' },
      ],
      /is there twice/,
    ],
    ['a FIFO', [{ name: 'p', type: 'fifo' }], /"p" is a FIFO/],
    ['a device', [{ name: 'd', type: 'block-device', devmajor: 8, devminor: 0 }], /"d" is a device/],
    ['a link to nothing', [{ name: 'l', type: 'symlink', linkname: '' }], /has no target/],
    ['a segment of 300 bytes', [{ name: 'y'.repeat(300), content: x }], /longer than 255 bytes/],
  ])('tar with %s', async ([, entries, says]) => {
    const row = await tarGz(entries);
    expect(failed(row)).toMatch(/^Failed: /);
    expect(row.seed_error).toMatch(says);
    expect([row.head, await world.tree(row)]).toEqual([0n, []]);
  });

  test.for<[why: string, entries: ZipEntry[], says: RegExp]>([
    ['a parent', [{ name: '../evil', content: x }], /has a .. segment/],
    ['a parent as a folder', [{ name: '../', mode: 0o040755 }], /has a .. segment/],
    ['a name that is not UTF-8', [{ name: Buffer.from([0x61, 0xff]), content: x }], /is not UTF-8/],
    ['a NUL', [{ name: 'a\0b', content: x }], /has a NUL/],
    [
      'a file below a link',
      [
        { name: 'out', mode: 0o120777, content: Buffer.from('/etc') },
        { name: 'out/x', content: x },
      ],
      /which is a symbolic link/,
    ],
    ['a socket', [{ name: 's', mode: 0o140777 }], /is of a kind/],
    [
      'a link with a long target',
      [{ name: 'l', mode: 0o120777, content: Buffer.alloc(5_000, 'x') }],
      /target of 5000 bytes/,
    ],
    ['less than it claims', [{ name: 'a', content: x, claimedSize: 1_000 }], /./],
    ['more than it claims', [{ name: 'a', content: Buffer.alloc(100_000), claimedSize: 1 }], /./],
  ])('zip with %s', async ([, entries, says]) => {
    const row = await zip(entries);
    expect(failed(row)).toMatch(/^Failed: /);
    expect(row.seed_error).toMatch(says);
    expect([row.head, await world.tree(row)]).toEqual([0n, []]);
  });

  test('F3: a tar with a name that is not UTF-8', async () => {
    const tar = await tarOf([{ name: 'axb', content: Buffer.from('x') }]);
    tar[1] = 0xff;
    // The checksum of the header, as the name is now.
    tar.fill(0x20, 148, 156);
    const sum = tar.subarray(0, 512).reduce((a, b) => a + b, 0);
    tar.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1');
    expect(failed(await seededFrom(gzipSync(tar), '.tar.gz'))).toMatch(/^Failed: path "a\\u\{fffd\}b" is not UTF-8$/);
  });

  test('a backslash is a character like others', async () => {
    expect(await listing(await zip([{ name: '..\\evil', content: x }]))).toEqual(['/..\\evil regular']);
  });
});

describe('F5: bombs', () => {
  test('a zip whose entry unpacks to gigabytes is refused before it is unpacked', async () => {
    const zeros = Buffer.alloc(20_000_000);
    const row = await zip([{ name: 'bomb', content: zeros }], {}, { maxFileSize: '64Mi', maxTotalSize: '16Mi' });
    expect(failed(row)).toMatch(/^Failed: .*files.maxTotalSize is/);
  });

  test('a tar that unpacks to far more than it is', async () => {
    const gz = gzipSync(Buffer.alloc(200_000_000));
    const before = process.memoryUsage().rss;
    const row = await seededFrom(gz, '.tar.gz', {}, { maxFileSize: '4Gi', maxTotalSize: '4Gi' });
    expect(failed(row)).toMatch(/^Failed: the archive's \d+ bytes unpack to more than 250 times as many/);
    expect(process.memoryUsage().rss - before).toBeLessThan(150_000_000);
  });

  test('more files, folders or bytes than the limits', async () => {
    const files = Array.from({ length: 60 }, (_, i) => ({ name: `${i}`, content: Buffer.from('x') }));
    expect(failed(await tarGz(files, {}, { maxFiles: 50 }))).toMatch(/^Failed: there are more than 50 files/);
    const folders = Array.from({ length: 1_200 }, (_, i) => ({ name: `d${i}`, type: 'directory' as const }));
    expect(failed(await tarGz(folders, {}, { maxFiles: 50 }))).toMatch(/^Failed: there are more entries/);
    const twice = Array.from({ length: 1_200 }, () => ({ name: 'same', content: Buffer.from('x') }));
    expect(failed(await tarGz(twice, {}, { maxFiles: 50 }))).toMatch(/^Failed: there are more entries/);
    const large = [{ name: 'large', content: Buffer.alloc(2_000_000) }];
    expect(failed(await tarGz(large))).toMatch(/^Failed: "\/large" has 2000000 bytes, files.maxFileSize is/);
    const many = Array.from({ length: 10 }, (_, i) => ({ name: `${i}`, content: Buffer.alloc(1_000_000) }));
    expect(failed(await tarGz(many))).toMatch(/^Failed: with "\/8" there are 9000000 bytes, files.maxTotalSize is/);
  });

  test('a nest of folders 2,000 deep', async () => {
    const row = await tarGz([{ name: `${'a/'.repeat(2_000)}f`, content: Buffer.from('x') }]);
    expect([failed(row), row.files]).toEqual(['Done: ', 1n]);
    expect(failed(await tarGz([{ name: `${'a/'.repeat(3_000)}f`, content: Buffer.from('x') }]))).toMatch(
      /longer than 4096/,
    );
  });
});

describe('what is not what it should be', () => {
  test('a hash that does not match: nothing of it is used', async () => {
    const bytes = await tarGzOf([{ name: 'a', content: Buffer.from('a') }]);
    const row = await seededFrom(bytes, '.tar.gz', { sha256: '0'.repeat(64) });
    expect(failed(row)).toMatch(
      /^Failed: git.test sent \d+ bytes with sha256 [0-9a-f]{64}|^Failed: what git.test.* has sha256/,
    );
    expect(row.head).toBe(0n);
  });

  test.for([
    ['no archive at all', Buffer.from('<html>not found</html>'), '.tar.gz', /is no whole tar.gz/],
    ['nothing', Buffer.alloc(0), '.tar.gz', /is no whole tar.gz/],
    ['gzip of no tar', gzipSync(Buffer.alloc(2_000, 'x')), '.tar.gz', /is no whole tar.gz/],
    ['a tar.gz that says it is a tar.zst', gzipSync('x'), '.tar.zst', /is no whole tar.zst/],
    ['no zip', Buffer.from('PK no'), '.zip', /is no whole zip/],
  ] as const)('%s', async ([, bytes, ending, says]) => {
    const row = await seededFrom(bytes, ending);
    expect(failed(row)).toMatch(/^Failed: /);
    expect(row.seed_error).toMatch(says);
  });

  test('F6: a transfer that breaks is tried again, and the next try starts clean', async () => {
    const bytes = await tarGzOf([{ name: 'a', content: Buffer.from('a'.repeat(100_000)) }]);
    const url = published(bytes, '.tar.gz');
    const path = new URL(url).pathname;
    server.serve(path, bytes, 40);
    const workspace = await world.seeded({ archive: { url, sha256: sha256(bytes) } });
    const waiting = await world.attempt(workspace);
    expect([waiting.seed_state, waiting.head]).toEqual(['Ready', 0n]);
    expect(waiting.seed_message).toMatch(/can't be reached \(ECONNRESET|ERR_STREAM_PREMATURE_CLOSE\)/);
    server.serve(path, 502);
    expect((await world.attempt(workspace)).seed_message).toMatch(/answers 502/);
    server.serve(path, bytes);
    expect(failed(await world.attempt(workspace))).toBe('Done: ');
    expect(await world.leftovers()).toEqual([]);
  });

  test('S6: redirects are followed, and every hop is checked again', async () => {
    const bytes = await tarGzOf([{ name: 'a', content: Buffer.from('a') }]);
    const of = (url: string) => world.seeded({ archive: { url, sha256: sha256(bytes), format: 'tar.gz' } });
    const base = `http://git.test:${server.port}`;
    server.serve('/there', bytes);
    for (let i = 1; i <= 6; i += 1) server.serve(`/hop${i}`, i === 1 ? '/there' : `${base}/hop${i - 1}`);
    expect(failed(await world.attempt(await of(`${base}/hop5`)))).toBe('Done: ');
    expect(failed(await world.attempt(await of(`${base}/hop6`)))).toMatch(/redirects more than 5 times/);
    for (const [to, says] of [
      ['https://metadata.test/', /resolves to 169.254.169.254/],
      ['https://127.0.0.1/', /no public address/],
      [`http://loopback.test:${server.port}/there`, /not encrypted/],
      ['file:///etc/passwd', /file:\/\/ is not called/],
    ] as const) {
      server.serve('/away', to);
      const row = await world.attempt(await of(`${base}/away`));
      expect(failed(row)).toMatch(/^Failed: /);
      expect(row.seed_error).toMatch(says);
    }
    server.serve('/gone', 404);
    expect(failed(await world.attempt(await of(`${base}/gone`)))).toMatch(/^Failed: .* answers 404: it is not there/);
  });
});
