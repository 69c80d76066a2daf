/** A workspace out as one file, and in again elsewhere. */
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, readlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { Readable } from 'node:stream';
import { createHash, randomBytes } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { exportRange } from '../../../operator/files/export.ts';
import { readExport } from '../../../operator/files/import.ts';
import type { FileEntry, WorkspaceRow } from '../../../operator/store/rows.ts';
import { KV_BYTES, KV_LIMITS } from '../../../proto/live/types.ts';
import { ConflictError, type Workspace } from '../../../sdk/index.ts';
import { useClients } from './world.ts';

const world = useClients();
const signal = AbortSignal.timeout(300_000);
const LARGE = {
  files: {
    ignored: [],
    maxFileSize: '64Mi',
    maxTotalSize: '128Mi',
    maxFiles: 5_000,
    deletions: { ratio: 50, atLeast: 20 },
  },
};

async function collected(pieces: AsyncIterable<Buffer>): Promise<Buffer> {
  const all: Buffer[] = [];
  for await (const piece of pieces) all.push(piece);
  return Buffer.concat(all);
}
async function rowOf({ namespace, name }: Workspace): Promise<WorkspaceRow> {
  const row = await world.store.findWorkspace(namespace, name);
  if (row === undefined) throw new Error('no row');
  return row;
}
async function treeOf(row: WorkspaceRow, version?: bigint): Promise<unknown[]> {
  const all: unknown[] = [];
  const essence = ({ path, kind, executable, sha256, target }: FileEntry) => [
    path,
    kind,
    executable,
    sha256?.toString('hex'),
    target,
  ];
  for await (const page of world.store.tree(row.id, version)) all.push(...page.map(essence));
  return all;
}
/** Files, links, bits, folders, odd names; changed, deleted and turned into each other. */
async function filled(): Promise<Workspace> {
  const w = await world.open({ effective: LARGE });
  await w.write('/run.sh', '#!/bin/sh', { executable: true });
  await w.writeAll({
    '/src/é 🦀\n.txt': 'odd',
    '/a/b': 'file',
    [`/${'x'.repeat(200)}/${'y'.repeat(200)}`]: 'long',
    '/empty': '',
  });
  await w.change([
    { op: 'symlink', path: '/link', target: '/etc/passwd' },
    { op: 'symlink', path: '/long', target: 'z'.repeat(300) },
    { op: 'mkdir', path: '/folder' },
  ]);
  await w.write('/big', randomBytes(3_000_000));
  await w.remove('/a', { recursive: true });
  await w.write('/a', 'now a file');
  await w.write('/big', randomBytes(10));
  await w.kv.put('k', Buffer.from([0, 1, 255]));
  return w;
}

describe('a round trip', () => {
  test('XP1, XP2, F1, F2, F3: every version of the history comes back, in another tenant too', async () => {
    const w = await filled();
    const tar = await collected(w.exportStream());
    const { name, namespace } = await world.workspace({ namespace: 'elsewhere', effective: LARGE });
    const copy = await world.lathe.workspace({ name, namespace });
    expect(await copy.import(tar, { dryRun: true })).toMatchObject({ complete: true, versions: 7, values: 1 });
    expect((await rowOf(copy)).head).toBe(0n);
    expect(await copy.import(tar)).toMatchObject({ complete: true, version: 7, versions: 7, values: 1 });
    const [from, to] = [await rowOf(w), await rowOf(copy)];
    for (let version = 1n; version <= 7n; version += 1n)
      expect(await treeOf(to, version)).toEqual(await treeOf(from, version));
    expect([...((await copy.kv.get('k')) ?? [])]).toEqual([0, 1, 255]);
    await expect(copy.import(tar)).resolves.toMatchObject({ version: 7 });
    await copy.write('/more', 'x');
    await expect(copy.import(tar)).rejects.toThrow(ConflictError);
  });

  test('of the head alone it is one version; by the command line', async () => {
    const w = await filled();
    const file = join(world.folder, 'head.tar');
    expect((await world.cli('export', w.name, file, '--head-only')).code).toBe(0);
    const { name } = await world.workspace({ effective: LARGE });
    expect((await world.cli('import', file, name, '--dry-run')).stdout).toBe(
      'would be version 7: 1 versions, 1 values\n',
    );
    expect((await world.cli('import', file, name)).stdout).toBe('is version 1: 1 versions, 1 values\n');
    const copy = await world.lathe.workspace({ name });
    expect(await treeOf(await rowOf(copy))).toEqual(await treeOf(await rowOf(w)));
  });

  test('plain tar reads it', async () => {
    const w = await filled();
    const folder = mkdtempSync(join(world.folder, 'plain-'));
    execFileSync('tar', ['-C', folder, '-xf', '-'], { input: await collected(w.exportStream()) });
    expect(readFileSync(join(folder, 'files/src/é 🦀\n.txt'), 'utf8')).toBe('odd');
    expect(readlinkSync(join(folder, 'files/long'))).toBe('z'.repeat(300));
    expect(readFileSync(join(folder, `files/${'x'.repeat(200)}/${'y'.repeat(200)}`), 'utf8')).toBe('long');
    expect(JSON.parse(readFileSync(join(folder, 'lathe-export.json'), 'utf8'))).toMatchObject({
      format: 1,
      version: 7,
      headOnly: false,
    });
  });
});

/** An export made by hand, with a manifest that is right. */
function forged(members: Readonly<Record<string, string>>, version = 1): Buffer {
  const folder = mkdtempSync(join(tmpdir(), 'lathe-forged-'));
  const header = { format: 1, workspace: { name: 'w' }, version, seq: 0, headOnly: false };
  const all: Record<string, string> = { 'lathe-export.json': JSON.stringify(header), ...members };
  const hash = (text: string) => createHash('sha256').update(text).digest('hex');
  all['manifest.json'] = JSON.stringify({ members: Object.entries(all).map(([name, text]) => [name, hash(text)]) });
  for (const [name, text] of Object.entries(all)) {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    writeFileSync(join(folder, name), text);
  }
  return execFileSync('tar', ['-C', folder, '--format=ustar', '-cf', '-', ...Object.keys(all)]);
}

describe('a forged export', () => {
  const secret = 'of another workspace of the tenant';
  const sha256 = createHash('sha256').update(secret).digest('hex');
  const row = { version: 1, path: '/stolen', kind: 'regular', executable: false, size: secret.length, sha256 };
  const read = async (tar: Buffer) => {
    const victim = await world.open({ effective: LARGE });
    await victim.write('/secret', secret);
    return await readExport(world.store, (await rowOf(victim)).tenant, Readable.from([tar]), true, signal);
  };

  test('names no content that it does not bring: a hash proves nothing', async () => {
    await expect(read(forged({ 'history/000001.jsonl': JSON.stringify(row) }))).rejects.toThrow(/does not bring/);
    const brought = forged({ [`blobs/${sha256}`]: secret, 'history/000001.jsonl': JSON.stringify(row) });
    expect((await read(brought)).versions.size).toBe(1);
  });

  test('says no other size than its contents have', async () => {
    const smaller = JSON.stringify({ ...row, size: 0 });
    const tar = forged({ [`blobs/${sha256}`]: secret, 'history/000001.jsonl': smaller });
    await expect(read(tar)).rejects.toThrow(/34 bytes/);
  });

  test('says of each kind what that kind has', async () => {
    const { sha256: _none, ...bare } = row;
    for (const wrong of [bare, { ...bare, kind: 'symlink', size: 0 }])
      await expect(read(forged({ 'history/000001.jsonl': JSON.stringify(wrong) }))).rejects.toThrow(/history/);
  });

  test('brings no more values, and no larger ones, than a workspace may have', async () => {
    const value = (key: string, bytes: number) =>
      JSON.stringify({ key, value: Buffer.alloc(bytes).toString('base64') });
    for (const lines of [[value('a', KV_BYTES + 1)], [value('a\0', 1)], [value('', 1)], [value('x'.repeat(513), 1)]])
      await expect(read(forged({ 'kv/000001.jsonl': lines.join('\n') }))).rejects.toThrow(/kv\/000001/);
    const many = Array.from({ length: KV_LIMITS.keys + 1 }, (_, i) => value(`k${i}`, 0));
    await expect(read(forged({ 'kv/000001.jsonl': many.join('\n') }))).rejects.toThrow(/values/);
  });
});

test('F6: whatever parts it is read in, it is the same bytes', async () => {
  const w = await filled();
  const row = await rowOf(w);
  const source = {
    store: world.store,
    workspace: row,
    options: { version: row.head, seq: row.last_seq, headOnly: false },
  };
  const { size, bytes } = await exportRange(source, 0, 1 << 30, signal);
  expect(bytes.length).toBe(size);
  expect((await exportRange(source, 0, 1 << 30, signal)).bytes.equals(bytes)).toBe(true);
  await fc.assert(
    fc.asyncProperty(fc.nat(size), fc.nat(size), async (offset, length) => {
      const part = await exportRange(source, offset, length, signal);
      expect(part.bytes.equals(bytes.subarray(offset, offset + length))).toBe(true);
    }),
    { numRuns: 40 },
  );
});

describe('what is no whole export', () => {
  const read = (row: WorkspaceRow, bytes: Buffer) =>
    readExport(
      world.store,
      row.tenant,
      (async function* () {
        for (let at = 0; at < bytes.length; at += 10_000) yield bytes.subarray(at, at + 10_000);
      })(),
      false,
      signal,
    );

  test('F6: cut at any byte it is refused', async () => {
    const w = await world.open({ effective: LARGE });
    await w.writeAll({ '/a': 'x', '/b/c': 'y' });
    const tar = await collected(w.exportStream());
    const row = await rowOf(w);
    const content = tar.length - 1_024;
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 0, max: content - 513 }), async (at) => {
        await expect(read(row, tar.subarray(0, at))).rejects.toMatchObject({ reason: 'BadRequest' });
      }),
      { numRuns: 100 },
    );
  });

  test('fuzz: with any bytes changed it is refused with a reason, or is what it was; nothing crashes', async () => {
    const w = await world.open({ effective: LARGE });
    await w.writeAll({ '/a': 'content', '/b/c': 'other' });
    await w.write('/a', 'again');
    const tar = await collected(w.exportStream());
    const row = await rowOf(w);
    const whole = await read(row, tar);
    let refused = 0;
    const runs = 500;
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.nat(tar.length - 1), fc.nat(255)), { minLength: 1, maxLength: 4 }),
        async (edits) => {
          const bytes = Buffer.from(tar);
          for (const [at, value] of edits) bytes[at] = value;
          const result = await read(row, bytes).catch((error: { reason?: string }) => error);
          if (result instanceof Error) {
            refused += 1;
            expect(['BadRequest', 'PathRefused']).toContain((result as { reason?: string }).reason);
          } else {
            // Padding, times, owners: nothing that counts. Modes and link targets are not under a hash.
            const paths = ({ versions }: typeof whole) =>
              [...versions].map(([v, lines]) => [v, lines.map((l) => [l.path, l.sha256])]);
            expect(paths(result as typeof whole)).toEqual(paths(whole));
          }
        },
      ),
      { numRuns: runs },
    );
    expect(refused).toBeGreaterThan(runs / 4);
  });

  test.for<[what: string, make: (folder: string) => string[]]>([
    ['F11: a name that leads out', () => ['--transform', 's,^x$,files/../../etc/x,', 'x']],
    ['a foreign member', () => ['x']],
    ['a device', () => ['--transform', 's,^dev/null$,files/null,', '-C', '/', 'dev/null']],
  ])('%s is refused', async ([, make]) => {
    const folder = mkdtempSync(join(world.folder, 'evil-'));
    mkdirSync(join(folder, 'files'));
    writeFileSync(join(folder, 'x'), 'x');
    writeFileSync(
      join(folder, 'lathe-export.json'),
      JSON.stringify({ format: 1, workspace: { name: 'x' }, version: 1, seq: 1, headOnly: true }),
    );
    const tar = execFileSync('tar', ['-C', folder, '-P', '-cf', '-', 'lathe-export.json', ...make(folder)]);
    const row = await world.workspace();
    await expect(read(row, tar)).rejects.toThrow(
      expect.objectContaining({ reason: expect.stringMatching(/BadRequest|PathRefused/) as unknown }),
    );
  });
});
