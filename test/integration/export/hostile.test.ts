/** What an import must not do to a real store: half of anything, a neighbour's contents, an untyped error. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { FenceLost } from '../../../operator/store/database.ts';
import { exportSize } from '../../../operator/files/export/export.ts';
import { importWorkspace } from '../../../operator/files/import/import.ts';
import { archiveOf, AT, file, headParts, lines, wholeParts, type Part } from '../../fakes/export-archive.ts';
import { useStore } from '../store/fixture.ts';
import { PAST } from './past.ts';
import { exported, imported, lived, owned, rowOf, sha256, steps, tracesOf, treeOf } from './world.ts';

const f = useStore();
const instead = (part: Part) => wholeParts().map((p) => (p.header.name === part.header.name ? part : p));

describe('half of it', () => {
  test(
    'F6: cut at any byte it is refused and leaves nothing, and then the whole of it is taken',
    { timeout: 180_000 },
    async () => {
      const { workspace } = await lived(f, PAST);
      const { bytes } = await exported(f, workspace);
      const copy = await owned(f);
      await fc.assert(
        fc.asyncProperty(fc.nat(bytes.length - 1), async (at) => {
          await expect(imported(f, copy, bytes.subarray(0, at))).rejects.toMatchObject({ reason: 'BadRequest' });
          expect(await tracesOf(f, copy.workspace.id)).toEqual({});
        }),
        { numRuns: 60 },
      );
      expect(await imported(f, copy, bytes)).toMatchObject({ version: workspace.head });
      expect(await treeOf(f, copy.workspace.id)).toEqual(await treeOf(f, workspace.id));
    },
  );

  test('any bytes of a real export changed: refused and nothing left', { timeout: 180_000 }, async () => {
    await fc.assert(
      fc.asyncProperty(
        steps,
        fc.array(fc.tuple(fc.nat(), fc.nat(255)), { minLength: 1, maxLength: 5 }),
        async (past, edits) => {
          const { workspace } = await lived(f, past);
          const { bytes } = await exported(f, workspace);
          const changed = Buffer.from(bytes);
          for (const [at, value] of edits) changed[at % bytes.length] = value;
          if (changed.equals(bytes)) return;
          const copy = await owned(f);
          await expect(imported(f, copy, changed)).rejects.toMatchObject({
            reason: expect.stringMatching(/BadRequest|PathRefused/) as string,
          });
          expect(await tracesOf(f, copy.workspace.id)).toEqual({});
        },
      ),
      { numRuns: 40 },
    );
  });

  test('K6: the owner dies half way: nobody sees anything of it, and the next owner imports it anew', async () => {
    const { workspace } = await lived(f, PAST);
    const { bytes } = await exported(f, workspace);
    const first = await owned(f);
    const next = await f.replica();
    let lease: Awaited<ReturnType<typeof f.store.acquire>> | undefined;
    async function* dying(): AsyncIterable<Buffer> {
      yield bytes.subarray(0, bytes.length - 2_000);
      await f.store.release(first.lease);
      lease = await f.store.acquire(first.workspace.id, next);
      yield bytes.subarray(bytes.length - 2_000);
    }
    await expect(importWorkspace(f.store, first, dying())).rejects.toThrow(FenceLost);
    expect(await tracesOf(f, first.workspace.id)).toEqual({});
    if (lease === undefined || !('lease' in lease)) throw new Error('not acquired');
    expect(await imported(f, { ...first, lease: lease.lease }, bytes)).toMatchObject({ version: workspace.head });
  });

  test('a crash leaves rows aside, which are no part of the workspace; the next import sweeps them away', async () => {
    const copy = await owned(f);
    const id = await f.store.beginImport(copy.lease);
    await f.store.stageImport(copy.lease, id, 'file', [{ path: '/left', kind: 'regular' }]);
    expect(await tracesOf(f, copy.workspace.id)).toEqual({ import: 1, import_row: 1 });
    expect(await treeOf(f, copy.workspace.id)).toEqual([]);
    await imported(f, copy, archiveOf(headParts(file('/a', 'x'))));
    expect((await treeOf(f, copy.workspace.id)).map((row) => (row as unknown[])[0])).toEqual(['/a']);
    expect(await tracesOf(f, copy.workspace.id)).not.toHaveProperty('import');
    await expect(f.store.stageImport(copy.lease, id, 'file', [{}])).rejects.toMatchObject({ reason: 'Conflict' });
  });

  test('K6: a lease that is lost before the last step: nothing becomes of it', async () => {
    const copy = await owned(f);
    const id = await f.store.beginImport(copy.lease);
    await f.store.stageImport(copy.lease, id, 'file', [{ path: '/d', kind: 'directory', executable: false, size: 0 }]);
    await f.store.release(copy.lease);
    await f.store.acquire(copy.workspace.id, await f.replica());
    const event = { type: 'files.committed', v: 1, payload: {} };
    const finish = { head: 1, seq: 1, headOnly: true, dryRun: false, rows: { file: 1 }, event };
    await expect(f.store.finishImport(copy.lease, id, finish)).rejects.toThrow(FenceLost);
    expect(await tracesOf(f, copy.workspace.id)).toEqual({ import: 1, import_row: 1 });
    await f.store.dropImport(copy.workspace.id, id);
  });

  test('a write that comes in between wins; the import is refused and leaves nothing of its own', async () => {
    const copy = await owned(f);
    const bytes = archiveOf(headParts(file('/a', 'x')));
    async function* slow(): AsyncIterable<Buffer> {
      yield bytes.subarray(0, 1_024);
      await f.store.commit(copy.lease, {
        changes: [{ path: '/first', op: 'put', kind: 'directory', executable: false, size: 0, base: 0n }],
        events: [{ type: 'noted', v: 1, payload: {} }],
      });
      yield bytes.subarray(1_024);
    }
    await expect(importWorkspace(f.store, copy, slow())).rejects.toMatchObject({ reason: 'Conflict' });
    expect(await tracesOf(f, copy.workspace.id)).toEqual({
      file: 1,
      file_version: 1,
      version_info: 1,
      event: 1,
      head: 1,
      seq: 1,
    });
  });
});

test.for<[what: string, fill: (copy: Awaited<ReturnType<typeof owned>>) => Promise<unknown>]>([
  [
    'a file',
    ({ lease }) =>
      f.store.commit(lease, {
        changes: [{ path: '/d', op: 'put', kind: 'directory', executable: false, size: 0, base: 0n }],
        events: [],
      }),
  ],
  ['an event', ({ lease }) => f.store.commit(lease, { changes: [], events: [{ type: 'noted', v: 1, payload: {} }] })],
  ['a turn', ({ workspace }) => f.turn(workspace, { command: 'true' })],
  ['a value', ({ workspace }) => f.store.writeValue(workspace, 'k', Buffer.from('v'), {})],
  [
    'a seed to come',
    ({ workspace }) =>
      f.store.database.query('seed-pending', "UPDATE workspace SET seed_state = 'Pending' WHERE id = $1", [
        workspace.id,
      ]),
  ],
])('a workspace with %s is left as it is', async ([, fill]) => {
  const copy = await owned(f);
  await fill(copy);
  const before = await tracesOf(f, copy.workspace.id);
  await expect(imported(f, copy, archiveOf(headParts(file('/a', 'x'))))).rejects.toMatchObject({ reason: 'Conflict' });
  await expect(imported(f, copy, archiveOf(wholeParts()), { dryRun: true })).rejects.toMatchObject({
    reason: 'Conflict',
  });
  expect(await tracesOf(f, copy.workspace.id)).toEqual(before);
});

describe('what does not fit together', () => {
  test('S3: a hash of a neighbour is worth nothing without its content', async () => {
    const secret = 'of another workspace of the same tenant';
    const neighbour = await owned(f);
    await f.store.putBlobs(neighbour.workspace.tenant, [Buffer.from(secret)]);
    const copy = await owned(f);
    const stolen = {
      version: 1,
      path: '/a',
      kind: 'regular',
      executable: false,
      size: secret.length,
      sha256: sha256(secret),
    };
    const deleted = { version: 2, path: '/a', kind: 'deleted', executable: false, size: 0 };
    const empty = wholeParts().filter(({ header: { name } }) => !/^(files|blobs)\//.test(name));
    const withHistory = empty.map((p) =>
      p.header.name === 'history/000001.jsonl' ? lines(p.header.name, stolen, deleted) : p,
    );
    const noOutputs = withHistory.map((p) =>
      p.header.name === 'executions.jsonl' || p.header.name === 'events/000001.jsonl' ? lines(p.header.name) : p,
    );
    for (const parts of [
      noOutputs,
      instead(lines('events/000001.jsonl', { seq: 1, type: 'x', v: 1, at: AT, payloadSha256: sha256(secret) })),
    ])
      await expect(imported(f, copy, archiveOf(parts))).rejects.toThrow(
        `content ${sha256(secret)} is named and not in it`,
      );
    expect(await tracesOf(f, copy.workspace.id)).toEqual({});
  });

  test.for<[what: string, part: Part]>([
    [
      'a history that ends elsewhere',
      lines('history/000001.jsonl', { version: 1, path: '/a', kind: 'directory', executable: false, size: 0 }),
    ],
    [
      'a history that has more',
      lines('history/000001.jsonl', { version: 1, path: '/zzz', kind: 'directory', executable: false, size: 0 }),
    ],
    ['a history without a line', lines('history/000001.jsonl')],
  ])('%s is refused', async ([, part]) => {
    const copy = await owned(f);
    await expect(imported(f, copy, archiveOf(instead(part)))).rejects.toThrow(/its history does not lead to/);
    expect(await tracesOf(f, copy.workspace.id)).toEqual({});
  });

  test('what Postgres can not keep is the fault of the archive', async () => {
    const copy = await owned(f);
    for (const payload of ['"\\ud800"', '"\\udc00 \\ud800"'])
      await expect(
        imported(
          f,
          copy,
          archiveOf(
            instead(lines('events/000001.jsonl', `{"seq":1,"type":"x","v":1,"at":"${AT}","payload":${payload}}`)),
          ),
        ),
      ).rejects.toMatchObject({ reason: 'BadRequest' });
    const session = { name: 'main', createdAt: AT };
    const turn = JSON.parse(String(wholeParts().find((p) => p.header.name === 'turns.jsonl')?.content)) as object;
    for (const part of [lines('turns.jsonl', turn, turn), lines('sessions.jsonl', { ...session, name: '\ud800' })])
      await expect(imported(f, copy, archiveOf(instead(part)))).rejects.toMatchObject({ reason: 'BadRequest' });
    expect(await tracesOf(f, copy.workspace.id)).toEqual({});
  });

  test(
    'fuzz: lines of any values, with a manifest that fits: taken or refused with a reason',
    { timeout: 180_000 },
    async () => {
      const names = [
        'history/000001.jsonl',
        'versions/000001.jsonl',
        'events/000001.jsonl',
        'executions.jsonl',
        'kv.jsonl',
        'sessions.jsonl',
        'turns.jsonl',
      ];
      const value = fc.oneof(
        fc.jsonValue({ maxDepth: 3 }),
        fc.constantFrom(
          -1,
          0,
          2 ** 31,
          2 ** 53,
          1e300,
          '',
          'x'.repeat(70_000),
          '/',
          '/..',
          'infinity',
          '0001-01-01T00:00:00.000000Z',
          AT,
          'deleted',
          'Running',
        ),
        fc.string({ unit: 'binary' }),
      );
      const outcomes = { taken: 0, refused: 0 };
      await fc.assert(
        fc.asyncProperty(
          fc.constantFrom(...names),
          fc.nat(),
          fc.nat(),
          fc.option(value, { nil: undefined }),
          async (name, row, field, v) => {
            const part = wholeParts().find((p) => p.header.name === name);
            const rows = String(part?.content ?? '')
              .trim()
              .split('\n')
              .map((line) => JSON.parse(line) as Record<string, unknown>);
            const chosen = rows[row % rows.length] ?? {};
            const keys = Object.keys(chosen);
            chosen[keys[field % keys.length] ?? ''] = v;
            const copy = await owned(f);
            const result = await imported(f, copy, archiveOf(instead(lines(name, ...rows)))).catch(
              (error: unknown) => error,
            );
            if (result instanceof Error) {
              outcomes.refused += 1;
              expect(result).toMatchObject({
                reason: expect.stringMatching(/^(BadRequest|PathRefused|Conflict)$/) as string,
              });
              expect(await tracesOf(f, copy.workspace.id)).toEqual({});
            } else {
              outcomes.taken += 1;
              // Whatever was taken can be exported.
              await exported(f, await rowOf(f, copy.workspace.id));
            }
          },
        ),
        { numRuns: 300 },
      );
      expect(outcomes.taken).toBeGreaterThan(5);
      expect(outcomes.refused).toBeGreaterThan(50);
    },
  );
});

test('guards: a limit of the new workspace refuses the whole of a history, and of the head only what breaks it', async () => {
  const { workspace } = await lived(f, PAST);
  const { bytes } = await exported(f, workspace);
  const small = { files: { ...workspace.effective.files, maxFileSize: '5' } };
  const copy = await owned(f, { effective: small });
  await expect(imported(f, copy, bytes)).rejects.toMatchObject({ reason: 'FileTooLarge' });
  expect(await tracesOf(f, copy.workspace.id)).toEqual({});
  const result = await imported(f, copy, bytes, { headOnly: true });
  expect(result.refused.map(({ path }) => path)).toContain('/a');
  const paths = (await treeOf(f, copy.workspace.id)).map((row) => (row as unknown[])[0]);
  expect(paths).toContain('/loop');
  expect(paths).not.toContain('/a');
  expect(await rowOf(f, copy.workspace.id)).toMatchObject({ head: 1n });
});

test('an export of another workspace, or of none, is not read by its hash', async () => {
  const { workspace } = await lived(f, PAST);
  const { pin } = await exported(f, workspace);
  const other = await lived(f, PAST);
  const gone = { reason: 'Gone' };
  await expect(exportSize({ store: f.store, workspace: other.workspace, pin })).rejects.toMatchObject(gone);
  const [text] = await f.store.putBlobs(workspace.tenant, [Buffer.from('no state of an export')]);
  for (const state of [text?.toString('hex') ?? '', '0'.repeat(64)])
    await expect(exportSize({ store: f.store, workspace, pin: { ...pin, state } })).rejects.toMatchObject(gone);
});
