/** A workspace out as one file, and in again elsewhere. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';
import { randomBytes } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import type { FileEntry, WorkspaceRow } from '../../../operator/store/rows.ts';
import { ConflictError, type Workspace } from '../../../sdk/index.ts';
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
    await expect(copy.import(tar)).rejects.toThrow(ConflictError);
    expect(await copy.write('/more', 'x')).toMatchObject({ version: 8 });
    expect((await copy.versions())[0]).toMatchObject({ version: 8, origin: 'api' });
    const log = await world.store.readEvents((await rowOf(copy)).id, {});
    expect(log.at(-2)).toMatchObject({
      type: 'files.committed',
      actor: 'ada',
      payload: { origin: 'import', toVersion: 7 },
    });
  });

  test('of the head alone it is one version; by the command line', async () => {
    const w = await filled();
    const file = join(world.folder, 'head.tar');
    expect((await world.cli('export', w.name, file, '--head-only')).code).toBe(0);
    const { name } = await world.workspace({ effective: LARGE });
    expect((await world.cli('import', file, name, '--dry-run')).stdout).toBe(
      'would be version 1: 1 versions, 1 values\n',
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

describe('an import that is asked for', () => {
  const uploaded = async (row: WorkspaceRow, bytes: Buffer): Promise<string> => {
    const { id } = (await world.ask('POST', row, 'import', { query: { uploads: 'true' } })).json() as { id: string };
    for (let offset = 0; offset < bytes.length; offset += 1 << 20)
      await world.ask('PUT', row, 'import', {
        query: { upload: id, offset: String(offset) },
        body: bytes.subarray(offset, offset + (1 << 20)),
      });
    return id;
  };

  test('F6: several times at once, and again when it is over, runs once and answers the same', async () => {
    const tar = await collected((await filled()).exportStream());
    const row = await world.workspace({ effective: LARGE });
    const upload = await uploaded(row, tar);
    const ask = async () => await world.ask('POST', row, 'import', { query: { upload } });
    const answers = await Promise.all([ask(), ask(), ask()]);
    answers.push(await ask());
    for (const answer of answers) expect(answer.json()).toEqual(answers[0]?.json());
    expect(answers[0]?.json()).toMatchObject({ complete: true, version: 7, versions: 7, values: 1 });
    expect(await world.store.readEvents(row.id, {})).toHaveLength(8);
    const unknown = await world.ask('POST', row, 'import', {
      query: { upload: 'ffffffff-ffff-7fff-8fff-ffffffffffff' },
    });
    expect(unknown.code).toBe(404);
  });

  test('what is no export is refused by its reason, and the whole of one is taken after', async () => {
    const tar = await collected((await filled()).exportStream());
    const row = await world.workspace({ effective: LARGE });
    const cut = await uploaded(row, tar.subarray(0, tar.length - 5_000));
    const refused = await world.ask('POST', row, 'import', { query: { upload: cut } });
    expect([refused.code, refused.json()['reason']]).toEqual([400, 'BadRequest']);
    expect((await rowOf(await world.lathe.workspace({ name: row.name }))).head).toBe(0n);
    const upload = await uploaded(row, tar);
    expect((await world.ask('POST', row, 'import', { query: { upload } })).json()).toMatchObject({ complete: true });
  });

  test('a part is asked with all that the first answer said, or begins anew', async () => {
    const row = await rowOf(await filled());
    const { headers } = await world.ask('GET', row, 'export');
    const [version, seq, state] = ['lathe-version', 'lathe-seq', 'lathe-state'].map((name) => String(headers[name]));
    const query = { version: version ?? '', seq: seq ?? '', state: state ?? '' };
    expect((await world.ask('GET', row, 'export', { query: { ...query, offset: '100' } })).code).toBe(200);
    expect((await world.ask('GET', row, 'export', { query: { state: query.state } })).code).toBe(400);
    expect((await world.ask('GET', row, 'export', { query: { ...query, state: '0'.repeat(64) } })).code).toBe(410);
    expect((await world.ask('GET', row, 'export', { query: { ...query, version: '99' } })).code).toBe(404);
    expect((await world.ask('GET', row, 'export', { query: { ...query, offset: '999999999' } })).code).toBe(416);
  });
});
