/** A workspace out as one file, and in again elsewhere: XP1, XP2, XP3. */
import { randomBytes } from 'node:crypto';
import { execFileSync } from 'node:child_process';
import { lstatSync, mkdtempSync, readFileSync, readlinkSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';
import { exportRange, exportSize } from '../../../operator/files/export/export.ts';
import { openPostgresStore } from '../../../operator/store/postgres-store.ts';
import { useStore } from '../store/fixture.ts';
import { PAST } from './past.ts';
import { exported, imported, lived, owned, rowOf, sha256, steps, tracesOf, treeOf, unique, whole } from './world.ts';

const f = useStore();
const folder = mkdtempSync(join(tmpdir(), 'lathe-export-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

describe('a round trip', () => {
  test(
    'XP1, XP2, F1, F2, F3, F12: any workspace comes back as it was, in another tenant, and exports to the same bytes again',
    { timeout: 300_000 },
    async () => {
      await fc.assert(
        fc.asyncProperty(steps, async (past) => {
          const name = `w-${unique()}`;
          const { workspace } = await lived(f, past, { name });
          const { pin, bytes } = await exported(f, workspace);
          const copy = await owned(f, { name, namespace: 'elsewhere' });
          const result = await imported(f, copy, bytes);
          expect(result).toMatchObject({
            version: workspace.head,
            refusedCount: 0,
            files: Number(workspace.files),
            bytes: Number(workspace.bytes),
          });
          for (let version = 1n; version <= workspace.head; version += 1n)
            expect(await treeOf(f, copy.workspace.id, version)).toEqual(await treeOf(f, workspace.id, version));
          const row = await rowOf(f, copy.workspace.id);
          expect(await treeOf(f, row.id)).toEqual(await treeOf(f, workspace.id));
          expect([row.head, row.files, row.bytes]).toEqual([workspace.head, workspace.files, workspace.bytes]);
          // The one event more tells of the import.
          expect(row.last_seq).toBe(workspace.last_seq + 1n);
          const again = await exported(f, row, { headOnly: false, version: pin.version, seq: pin.seq });
          expect(again.bytes.equals(bytes)).toBe(true);
        }),
        { numRuns: 40 },
      );
    },
  );

  test('of the head alone it is one version, and what is left of the past stays behind', async () => {
    const { workspace } = await lived(f, PAST);
    const { bytes } = await exported(f, workspace, { headOnly: true });
    const copy = await owned(f);
    expect(await imported(f, copy, bytes, { actor: 'ada' })).toMatchObject({
      version: 1n,
      versions: 1,
      events: 0,
      turns: 0,
      kv: 1,
    });
    const essence = (tree: unknown[]) => (tree as unknown[][]).map((row) => row.slice(0, 5));
    expect(essence(await treeOf(f, copy.workspace.id))).toEqual(essence(await treeOf(f, workspace.id)));
    expect([...((await f.store.getValue(copy.workspace.id, 'k')) ?? [])]).toEqual([0, 1, 255]);
    expect(await f.store.versions(copy.workspace.id, { before: 9n, limit: 9 })).toMatchObject([
      { version: 1n, origin: 'import', actor: 'ada' },
    ]);
    const other = await owned(f);
    const full = await exported(f, workspace);
    await imported(f, other, full.bytes, { headOnly: true });
    expect(essence(await treeOf(f, other.workspace.id))).toEqual(essence(await treeOf(f, workspace.id)));
    expect((await rowOf(f, other.workspace.id)).head).toBe(1n);
  });

  test('XP3: turns come back as history; one that had not ended is Cancelled, one that waits for a person waits', async () => {
    const past = await lived(f, [...PAST, { do: 'turn', phase: 'NeedsContinuation', answer: 'may I?' }]);
    const open = await f.turn(past.workspace, { message: 'later' });
    const { bytes } = await exported(f, past.workspace);
    const copy = await owned(f);
    await imported(f, copy, bytes);
    const turns = await f.store.database.query<{
      phase: string;
      reason: string;
      name: string;
      id: string;
      answer: string | null;
    }>('turns-of', 'SELECT phase, reason, name, id, answer FROM turn WHERE workspace = $1 ORDER BY ordinal', [
      copy.workspace.id,
    ]);
    expect(turns.map(({ phase, reason, answer }) => [phase, reason, answer])).toEqual([
      ['Completed', null, null],
      ['Completed', 'r', 'done'],
      ['NeedsContinuation', 'r', 'may I?'],
      ['Cancelled', 'Imported', null],
    ]);
    expect(turns.map(({ id }) => id)).not.toContain(open);
    const waiting = turns[2];
    const events = await f.store.readEvents(copy.workspace.id, { turn: waiting?.id ?? '' });
    expect(events).toMatchObject([{ type: 'turn.ended', payload: { phase: 'NeedsContinuation', message: 'may I?' } }]);
    // Nothing of it is run by anybody.
    expect(await f.store.claimTurn(copy.replica, [])).not.toMatchObject({ workspace: { id: copy.workspace.id } });
    const all = await f.store.readEvents(copy.workspace.id, {});
    expect(all.find(({ type }) => type === 'noted')?.payload).toEqual({ big: 'p'.repeat(20_000) });
    expect(all.at(-1)).toMatchObject({ type: 'files.committed', payload: { origin: 'import', toVersion: 2 } });
  });

  test('a dry run says the same and leaves nothing', async () => {
    const { workspace } = await lived(f, PAST);
    const { bytes } = await exported(f, workspace);
    const copy = await owned(f);
    const dry = await imported(f, copy, bytes, { dryRun: true });
    expect(await tracesOf(f, copy.workspace.id)).toEqual({});
    expect(await imported(f, copy, bytes)).toEqual(dry);
  });

  test('the workspace goes on after it: a commit is the next version and event', async () => {
    const { workspace } = await lived(f, PAST);
    const { bytes } = await exported(f, workspace);
    const copy = await owned(f);
    await imported(f, copy, bytes);
    const before = await rowOf(f, copy.workspace.id);
    const [sha256] = await f.store.putBlobs(copy.workspace.tenant, [Buffer.from('more')]);
    const committed = await f.store.commit(copy.lease, {
      changes: [
        {
          path: '/more',
          op: 'put',
          kind: 'regular',
          executable: false,
          size: 4,
          base: 0n,
          ...(sha256 === undefined ? {} : { sha256 }),
        },
      ],
      events: [{ type: 'noted', v: 1, payload: {} }],
    });
    expect(committed).toMatchObject({ head: before.head + 1n, lastSeq: before.last_seq + 1n });
  });
});

describe('more than one page of everything', () => {
  const effective = {
    files: {
      ignored: [],
      maxFileSize: '8Mi',
      maxTotalSize: '64Mi',
      maxFiles: 10_000,
      deletions: { ratio: 50, atLeast: 20 },
    },
  };
  test.for([1_000, 2_000, 4_300])(
    'F6, F7: %i files with as many older contents and events: comes back, and any range of it is the same bytes',
    { timeout: 240_000 },
    async (count) => {
      const name = `w-${unique()}`;
      const own = await owned(f, { name, effective });
      const { workspace, lease } = own;
      for (let version = 0n; version < 2n; version += 1n) {
        const contents = Array.from({ length: count }, (_, i) => Buffer.from(`${version} ${i}`));
        const hashes = await f.store.putBlobs(workspace.tenant, contents);
        await f.store.commit(lease, {
          changes: hashes.map((hash, i) => ({
            ...{ path: `/folder/${i % 7}/file-${i}`, op: 'put', kind: 'regular', executable: i % 3 === 0 },
            ...{ size: contents[i]?.length ?? 0, sha256: hash, base: version },
          })),
          events: Array.from({ length: count / 2 }, (_, i) => ({ type: 'noted', v: 1, payload: { i } })),
        });
      }
      const large = randomBytes(3_000_001);
      const [hash] = await f.store.putBlobs(workspace.tenant, [large]);
      await f.store.commit(lease, {
        changes: [
          ...[
            {
              path: '/folder/3/large',
              op: 'put',
              kind: 'regular',
              executable: false,
              size: large.length,
              base: 0n,
            } as const,
          ].map((change) => ({ ...change, ...(hash === undefined ? {} : { sha256: hash }) })),
        ],
        events: [],
      });
      const row = await rowOf(f, workspace.id);
      const { pin, bytes } = await exported(f, row);
      const source = { store: f.store, workspace: row, pin };
      await fc.assert(
        fc.asyncProperty(fc.nat(bytes.length), fc.nat(200_000), async (offset, length) => {
          const part = await whole(exportRange(source, offset, length));
          expect(part.equals(bytes.subarray(offset, offset + length))).toBe(true);
        }),
        { numRuns: 60 },
      );
      const copy = await owned(f, { name, namespace: 'elsewhere', effective });
      expect(await imported(f, copy, bytes)).toMatchObject({ files: count + 1, versions: 3, events: count });
      const again = await exported(f, await rowOf(f, copy.workspace.id), {
        headOnly: false,
        version: pin.version,
        seq: pin.seq,
      });
      expect(again.bytes.equals(bytes)).toBe(true);
      for (const version of [1n, 3n])
        expect(await treeOf(f, copy.workspace.id, version)).toEqual(await treeOf(f, workspace.id, version));
    },
  );
});

describe('what is sent', () => {
  test(
    'F6: whatever parts it is read in, by whichever replica, it is the same bytes',
    { timeout: 120_000 },
    async () => {
      const { workspace } = await lived(f, PAST);
      const { pin, bytes } = await exported(f, workspace);
      // It has planned nothing, and values that change meanwhile are as they were.
      const other = openPostgresStore(f.url, 'other');
      await f.store.writeValue(workspace, 'k', Buffer.from('changed'), {});
      await f.store.writeValue(workspace, 'new', Buffer.from('new'), {});
      const source = { store: other, workspace, pin };
      expect(await exportSize(source)).toBe(bytes.length);
      await fc.assert(
        fc.asyncProperty(fc.array(fc.nat(bytes.length), { maxLength: 6 }), async (cuts) => {
          const at = [0, ...cuts.toSorted((a, b) => a - b), bytes.length];
          const parts = await Promise.all(
            at.slice(1).map(async (end, i) => await whole(exportRange(source, at[i] ?? 0, end - (at[i] ?? 0)))),
          );
          expect(Buffer.concat(parts).equals(bytes)).toBe(true);
        }),
        { numRuns: 60 },
      );
      expect(await whole(exportRange(source, bytes.length, 100))).toHaveLength(0);
      await other.close();
    },
  );

  test('what was taken from the history since it began ends it: nothing else is sent in its place', async () => {
    const { workspace } = await lived(f, PAST);
    const { pin, bytes } = await exported(f, workspace);
    const source = { store: f.store, workspace, pin };
    await f.store.database.query('thin-out', "DELETE FROM file_version WHERE workspace = $1 AND path = '/a/b'", [
      workspace.id,
    ]);
    await expect(whole(exportRange(source, 0, bytes.length))).rejects.toMatchObject({ reason: 'Gone' });
    // Planned anew it is another one, and says so by its size.
    expect(await exportSize(source)).not.toBe(bytes.length);
    await f.store.database.query('collect', 'DELETE FROM blob WHERE tenant = $1 AND sha256 = $2', [
      workspace.tenant,
      Buffer.from(pin.state, 'hex'),
    ]);
    const other = openPostgresStore(f.url, 'other');
    await expect(exportSize({ ...source, store: other })).rejects.toMatchObject({ reason: 'Gone' });
    await other.close();
  });

  test('plain tar lists and unpacks it, and sha256sum finds every content as the manifest says', async () => {
    const { workspace } = await lived(f, PAST);
    const { bytes } = await exported(f, workspace);
    const to = mkdtempSync(join(folder, 'plain-'));
    const names = execFileSync('tar', ['-tf', '-'], { input: bytes, maxBuffer: 1 << 26 })
      .toString('utf8')
      .split('\n');
    // Each content once: those of the tree are not there a second time.
    expect(names.filter((name) => name.startsWith('blobs/')).sort()).toEqual(
      ['was here', 'out'.repeat(5_000), JSON.stringify({ big: 'p'.repeat(20_000) })]
        .map((c) => `blobs/${sha256(c)}`)
        .sort(),
    );
    expect(names.filter((name) => !name.startsWith('files/') && !name.startsWith('blobs/'))).toEqual([
      ...['lathe-export.json', 'history/000001.jsonl', 'versions/000001.jsonl', 'events/000001.jsonl'],
      ...['executions.jsonl', 'kv.jsonl', 'requests.jsonl', 'sessions.jsonl', 'turns.jsonl', 'manifest.sha256', ''],
    ]);
    execFileSync('tar', ['-C', to, '--no-same-owner', '-xf', '-'], { input: bytes, maxBuffer: 1 << 26 });
    expect(readFileSync(join(to, 'files/é 🦀\n"x".txt'), 'utf8')).toBe('odd');
    expect(readlinkSync(join(to, 'files/link'))).toBe('/etc/passwd');
    expect(readlinkSync(join(to, 'files/dangling'))).toBe('z'.repeat(300));
    expect(lstatSync(join(to, 'files/run.sh')).mode & 0o777).toBe(0o755);
    expect(lstatSync(join(to, 'files/empty')).isDirectory()).toBe(true);
    const checked = execFileSync('sha256sum', ['-c', '--strict', 'manifest.sha256'], { cwd: to }).toString('utf8');
    expect(checked.split('\n').filter((line) => line !== '' && !line.endsWith(': OK'))).toEqual([]);
    const header = JSON.parse(readFileSync(join(to, 'lathe-export.json'), 'utf8')) as object;
    expect(header).toMatchObject({ format: 1, version: 2, headOnly: false, workspace: { name: workspace.name } });
  });
});
