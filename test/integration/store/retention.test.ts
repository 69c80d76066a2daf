/** What nobody has any more goes, and nothing that somebody has. */
import { createHash, randomBytes } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { FenceLost } from '../../../operator/store/database.ts';
import { newId } from '../../../operator/store/ids.ts';
import type { WorkspaceRow } from '../../../operator/store/rows.ts';
import { EFFECTIVE, useStore } from './fixture.ts';

const f = useStore();
const sql = (text: string, values: unknown[] = []) =>
  f.store.database.query<Record<string, unknown>>(createHash('md5').update(text).digest('hex'), text, values);
const count = async (table: string, workspace: string) =>
  Number((await sql(`SELECT count(*) AS n FROM ${table} WHERE workspace = $1`, [workspace]))[0]?.['n']);
// In the order in which contents are put.
const age = () =>
  sql(`WITH held AS MATERIALIZED (SELECT tenant, sha256 FROM blob ORDER BY sha256 FOR NO KEY UPDATE)
       UPDATE blob b SET created_at = now() - interval '25 hours' FROM held h WHERE b.tenant = h.tenant AND b.sha256 = h.sha256`);

async function owned(namespace = 'retention') {
  const workspace = await f.workspace({ namespace });
  const acquired = await f.store.acquire(workspace.id, await f.replica());
  if (!('lease' in acquired)) throw new Error('it is owned');
  return { workspace, lease: acquired.lease };
}
async function write({ workspace, lease }: Awaited<ReturnType<typeof owned>>, path: string, content: Buffer) {
  const [sha256] = await f.store.putBlobs(workspace.tenant, [content]);
  if (sha256 === undefined) throw new Error('no hash');
  const change = {
    path,
    op: 'put',
    kind: 'regular',
    executable: false,
    size: content.length,
    sha256,
    base: 0n,
  } as const;
  await f.store.commit(lease, {
    changes: [change],
    events: [{ type: 'files.committed', v: 1, payload: { large: 'x'.repeat(9_000) } }],
  });
  return sha256;
}
async function purge(workspace: WorkspaceRow) {
  await f.control.markWorkspaceDeleted(workspace.uid);
  for (let i = 0; !(await f.control.purgeRecord(workspace.id)); i += 1) if (i > 10) throw new Error('it never ends');
}

describe('a record', () => {
  test('goes whole, its log too, and its owner is fenced off; one that is not deleted stays', async () => {
    const mine = await owned();
    await write(mine, '/a', randomBytes(10));
    await expect(f.control.purgeRecord(mine.workspace.id)).rejects.toThrow('is not deleted');
    await purge(mine.workspace);
    for (const table of ['event', 'file', 'file_version', 'version_info'])
      expect(await count(table, mine.workspace.id)).toBe(0);
    await expect(f.store.commit(mine.lease, { changes: [], events: [] })).rejects.toThrow(FenceLost);
  });

  test('is brought back by adoptFrom, under another name and uid, with its files; only while it is deleted', async () => {
    const mine = await owned();
    await write(mine, '/a', Buffer.from('kept'));
    const { id, tenant, namespace } = mine.workspace;
    const again = (uid: string, name: string) =>
      f.control.upsertWorkspace({
        ...{
          tenant,
          namespace,
          name,
          uid,
          generation: 1,
          class: 'default',
          spec: {},
          effective: EFFECTIVE,
          hasSeed: false,
        },
        adopt: id,
      });
    expect((await again(newId(), 'other')).id).not.toBe(id);
    await f.control.markWorkspaceDeleted(mine.workspace.uid);
    const uid = newId();
    expect((await again(uid, 'back')).id).toBe(id);
    expect((await again(uid, 'back')).id).toBe(id);
    expect(await f.store.findWorkspace(namespace, 'back')).toMatchObject({ id, head: 1n, files: 1n });
  });
});

describe('contents', () => {
  test('that nothing names go after a day; those of files, of old versions and of the log stay', async () => {
    const mine = await owned('blobs');
    const old = await write(mine, '/a', randomBytes(1_000));
    const change = { path: '/a', op: 'delete', base: 1n } as const;
    await f.store.commit(mine.lease, { changes: [change], events: [] });
    const [unnamed, young] = await f.store.putBlobs(mine.workspace.tenant, [randomBytes(500), randomBytes(600)]);
    await age();
    await sql('UPDATE blob SET created_at = now() WHERE sha256 = $1', [young]);
    while ((await f.control.collectBlobs()) > 0);
    const left = async (sha256: Buffer | undefined) =>
      (await sql('SELECT 1 FROM blob WHERE sha256 = $1', [sha256])).length;
    expect([await left(old), await left(unnamed), await left(young)]).toEqual([1, 0, 1]);
    expect((await f.store.readEvents(mine.workspace.id, {})).at(0)?.payload).toMatchObject({
      large: 'x'.repeat(9_000),
    });
    await purge(mine.workspace);
    await age();
    while ((await f.control.collectBlobs()) > 0);
    expect((await sql('SELECT 1 FROM blob WHERE tenant = $1', [mine.workspace.tenant])).length).toBe(0);
  });

  test('that are put while the old ones are collected are never missing when a commit names them', async () => {
    const mine = await owned('race');
    const contents = [...Array(20).keys()].map((i) => Buffer.from(`content ${i}`));
    const done = new AbortController();
    const collecting = (async () => {
      while (!done.signal.aborted) {
        await age();
        await f.control.collectBlobs();
      }
    })();
    for (let round = 0; round < 10; round += 1) {
      const hashes = await f.store.putBlobs(mine.workspace.tenant, contents);
      // As old as it may get between being put and being named, which takes seconds: the next ageing comes with the next round.
      const changes = hashes.map((sha256, i) => ({
        ...({ path: `/r${round}/${i}`, op: 'put', kind: 'regular', executable: false, base: 0n } as const),
        ...{ size: contents[i]?.length ?? 0, sha256 },
      }));
      await f.store.commit(mine.lease, { changes, events: [] }).catch((error: { code?: string }) => {
        // Aged by this test between the two, and collected: refused whole, never half.
        expect(error.code).toBe('23503');
      });
    }
    done.abort();
    await collecting;
    for await (const page of f.store.tree(mine.workspace.id, undefined))
      for (const entry of page) {
        const pieces: Buffer[] = [];
        for await (const piece of f.store.readBlob(mine.workspace.tenant, entry.sha256 ?? Buffer.alloc(0)))
          pieces.push(piece);
        expect(
          createHash('sha256')
            .update(Buffer.concat(pieces))
            .digest()
            .equals(entry.sha256 ?? Buffer.alloc(0)),
        ).toBe(true);
      }
  });
});

describe('a quota', () => {
  test('holds for all workspaces of a namespace together, also when they grow at once; what is deleted makes room', async () => {
    const [one, two] = [await owned('quota'), await owned('quota')];
    await f.control.putQuota(one.workspace.tenant, 1_000);
    const results = await Promise.allSettled(
      [one, two].flatMap((each) => [0, 1, 2].map((i) => write(each, `/${i}`, randomBytes(300)))),
    );
    expect(results.filter(({ status }) => status === 'fulfilled').length).toBe(3);
    expect(results.find(({ status }) => status === 'rejected')).toMatchObject({
      reason: {
        reason: 'QuotaExceeded',
        message: expect.stringMatching(/namespace quota would have \d+ bytes.*allows 1000/) as unknown,
      },
    });
    expect(await f.control.storedBytes(one.workspace.tenant)).toBe(900n);
    await f.control.markWorkspaceDeleted(two.workspace.uid);
    await write(one, '/again', randomBytes(90));
    await f.control.putQuota(one.workspace.tenant, undefined);
    await write(one, '/large', randomBytes(5_000));
  });
});
