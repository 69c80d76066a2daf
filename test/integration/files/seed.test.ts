/** What holds for every seed: copies of workspaces, takeover, progress, time; and what the operator shows of them. */
import { setTimeout as delay } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { workspaceStatus } from '../../../operator/controllers/workspaces.ts';
import type { Workspace } from '../../../operator/controllers/resources.ts';
import { TransientError } from '../../../operator/errors.ts';
import { runSeed } from '../../../operator/files/seed.ts';
import { FenceLost } from '../../../operator/store/database.ts';
import type { Change, WorkspaceRow } from '../../../operator/store/rows.ts';
import type { WorkspaceStore } from '../../../operator/store/workspace-store.ts';
import { useSeeds } from './world.ts';

const world = useSeeds();
const failed = (row: WorkspaceRow) => `${row.seed_state}: ${row.seed_error ?? ''}`;

async function put(workspace: WorkspaceRow, files: Readonly<Record<string, string>>, base = 0n): Promise<void> {
  const got = await world.store.acquire(workspace.id, await world.replica());
  if (!('lease' in got)) throw new Error('not acquired');
  const changes: Change[] = [];
  for (const [path, text] of Object.entries(files)) {
    const content = Buffer.from(text);
    const [sha256] = await world.store.putBlobs(workspace.tenant, [content]);
    if (sha256 !== undefined)
      changes.push({
        path,
        op: 'put',
        kind: 'regular',
        executable: path.endsWith('.sh'),
        size: content.length,
        sha256,
        base,
      });
  }
  await world.store.commit(got.lease, { changes, events: [] });
  await world.store.release(got.lease);
}

async function status(workspace: WorkspaceRow) {
  const projection = await world.control.workspaceProjection(workspace.id);
  const object = {
    metadata: { name: workspace.name, uid: workspace.uid },
    spec: workspace.spec,
  } as unknown as Workspace;
  const { conditions = [] } = workspaceStatus(object, undefined, projection, undefined, new Date());
  return Object.fromEntries(conditions.map((c) => [c.type, `${c.status} ${c.reason}: ${c.message}`]));
}

describe('a copy of another workspace', () => {
  test('FW25: has its files at its head, or at a version, and not a byte is copied', async () => {
    const from = await world.workspace({ namespace: 'copies' });
    await put(from, { '/a': 'one', '/run.sh': '#!/bin/sh\n' });
    await put(from, { '/a': 'two' }, 1n);
    const blobs = async () =>
      (
        await world.store.database.query<{ n: bigint }>(
          'copies-blobs',
          'SELECT count(*) AS n FROM blob WHERE tenant = $1',
          [from.tenant],
        )
      )[0]?.n;
    const before = await blobs();
    for (const [version, content] of [
      [undefined, 'two'],
      [1, 'one'],
    ] as const) {
      const seed = { workspace: { name: from.name, ...(version === undefined ? {} : { version }) } };
      const row = await world.attempt(await world.seeded(seed, { namespace: 'copies' }));
      expect([failed(row), row.head, row.files]).toEqual(['Done: ', 1n, 2n]);
      expect((await world.read(row, '/a')).toString()).toBe(content);
      expect((await world.tree(row)).find((e) => e.path === '/run.sh')?.executable).toBe(true);
      expect((await world.events(row))[0]).toMatchObject({
        payload: { origin: 'seed', source: { workspace: { name: from.name, version: version ?? 2 } } },
      });
    }
    expect(await blobs()).toBe(before);
  });

  test('of one that is not there, or waits for its own seed, waits; of one that is elsewhere, too', async () => {
    const elsewhere = await world.workspace({ namespace: 'elsewhere' });
    await put(elsewhere, { '/secret': 'of another tenant' });
    const copy = await world.seeded({ workspace: { name: elsewhere.name } }, { namespace: 'copies' });
    const row = await world.attempt(copy);
    expect([row.seed_state, row.seed_message]).toEqual([
      'Ready',
      `waiting: there is no Workspace ${elsewhere.name} in namespace copies (try 1)`,
    ]);
    const source = await world.seeded({ workspace: { name: 'later' } }, { namespace: 'copies', name: 'unseeded' });
    const waiting = await world.seeded({ workspace: { name: source.name } }, { namespace: 'copies' });
    expect((await world.attempt(waiting)).seed_message).toMatch(/Workspace unseeded waits for its own seed/);
  });

  test('of one that a namespace of the same name had before it was made anew, waits', async () => {
    const before = await world.workspace({ namespace: 'reborn' });
    await put(before, { '/secret': 'of the tenant before' });
    const old = await world.control.upsertTenant({ namespace: 'reborn', namespaceUid: 'before' });
    await world.store.database.query('reborn', 'UPDATE workspace SET tenant = $2 WHERE id = $1', [before.id, old]);
    const copy = await world.seeded({ workspace: { name: before.name } }, { namespace: 'reborn' });
    expect((await world.attempt(copy)).seed_message).toMatch(/there is no Workspace/);
  });

  test('of a version that is not there, or of itself, fails', async () => {
    const from = await world.workspace({ namespace: 'copies' });
    await put(from, { '/a': 'one' });
    const late = await world.seeded({ workspace: { name: from.name, version: 9 } }, { namespace: 'copies' });
    expect(failed(await world.attempt(late))).toBe(`Failed: Workspace ${from.name} has no version 9; its newest is 1`);
    const self = await world.seeded({ workspace: { name: 'self' } }, { namespace: 'copies', name: 'self' });
    expect(failed(await world.attempt(self))).toMatch(/can't be its own seed/);
  });

  test('obeys the limits of the workspace that is seeded', async () => {
    const from = await world.workspace({ namespace: 'copies' });
    await put(from, { '/a': 'one', '/b': 'two' });
    const small = await world.seeded(
      { workspace: { name: from.name } },
      { namespace: 'copies', files: { maxFiles: 1 } },
    );
    expect(failed(await world.attempt(small))).toMatch(/^Failed: there are more than 1 files/);
  });
});

describe('a try', () => {
  const source = async () => {
    const from = await world.workspace();
    await put(from, { '/a': 'one' });
    return from.name;
  };

  test('of a replica that is gone is made again by another, and the first can commit nothing', async () => {
    const workspace = await world.seeded({ workspace: { name: await source() } });
    const [first, second] = [await world.replica(), await world.replica()];
    const claim = await world.claim(workspace, first);
    expect(await claimed(second, workspace)).toBe(false);
    // Paused in the middle of its try, for longer than its lease.
    await world.store.database.query(
      'paused',
      "UPDATE replica SET heartbeat_at = now() - interval '1 minute' WHERE id = $1",
      [first],
    );
    const again = await world.claim(workspace, second);
    await expect(runSeed(world.deps(), claim, () => undefined, AbortSignal.timeout(10_000))).rejects.toThrow(FenceLost);
    await runSeed(world.deps(), again, () => undefined, AbortSignal.timeout(10_000));
    expect(await world.store.getWorkspace(workspace.id)).toMatchObject({ seed_state: 'Done', head: 1n });
    expect((await world.events(workspace)).map((e) => e.type)).toEqual(['files.committed']);
  });

  test('that was committed and not reported is found done', async () => {
    const workspace = await world.seeded({ workspace: { name: await source() } });
    const store: WorkspaceStore = {
      ...world.store,
      finishSeed: () => Promise.reject(new TransientError('StoreUnavailable', 'gone')),
    };
    await expect(world.attempt(workspace, { store })).rejects.toThrow('gone');
    const heads: bigint[] = [];
    await world.store.database.query('free', 'UPDATE lease SET released = true WHERE workspace = $1', [workspace.id]);
    await runSeed(world.deps(), await world.claim(workspace), (head) => heads.push(head), AbortSignal.timeout(10_000));
    expect(heads).toEqual([1n]);
    expect(await world.store.getWorkspace(workspace.id)).toMatchObject({ seed_state: 'Done', head: 1n });
    expect(await world.events(workspace)).toHaveLength(1);
  });

  test('that is stopped says nothing, and leaves nothing', async () => {
    const workspace = await world.seeded({ workspace: { name: await source() } });
    const stop = new AbortController();
    const store: WorkspaceStore = {
      ...world.store,
      commit: async () => {
        stop.abort(new Error('stopped'));
        stop.signal.throwIfAborted();
        throw new Error('not reached');
      },
    };
    await expect(
      runSeed(world.deps({ store }), await world.claim(workspace), () => undefined, stop.signal),
    ).rejects.toThrow('stopped');
    expect(await world.store.getWorkspace(workspace.id)).toMatchObject({
      seed_state: 'Ready',
      head: 0n,
      seed_attempts: 0,
    });
    expect(await world.leftovers()).toEqual([]);
  });

  test('is bounded in time, and five of an unknown failure are enough', async () => {
    const workspace = await world.seeded({ git: { url: 'https://git.test/x', secretName: 's' } });
    const slow = { timeoutMs: 30, readSecret: () => delay(60).then(() => Promise.reject(new Error('odd'))) };
    for (const attempt of [1, 2, 3, 4]) {
      const row = await world.attempt(workspace, slow);
      expect([row.seed_state, row.seed_attempts]).toEqual(['Ready', attempt]);
      expect(row.seed_message).toMatch(/^waiting: it was not done after 0.03 s \(connecting/);
    }
    expect(failed(await world.attempt(workspace, slow))).toMatch(/^Failed: it was not done after/);
  });
});

describe('a status', () => {
  test('says what a seed does, what it waits for, that it is done, and why not', async () => {
    const workspace = await world.seeded({ git: { url: 'https://git.test/x', secretName: 'none' } });
    expect(await status(workspace)).toMatchObject({
      Ready: 'False Seeding: its first files are on their way',
      Stalled: /^False/,
    });
    let shown: string | undefined;
    const readSecret = async () => {
      // Longer than a report takes.
      for (let i = 0; i < 100 && shown === undefined; i += 1) {
        await delay(20);
        const { Ready = '' } = await status(workspace);
        if (Ready.includes('connecting')) shown = Ready;
      }
      throw new TransientError('NotFound', 'there is no Secret none');
    };
    await world.attempt(workspace, { readSecret, reportMs: 10 });
    expect(shown).toMatch(/^False Seeding: connecting: \d+ s$/);
    expect(await status(workspace)).toMatchObject({
      Ready: 'False Seeding: waiting: there is no Secret none (try 1)',
      Reconciling: 'True Seeding: waiting: there is no Secret none (try 1)',
    });
    const wrong = await world.seeded({ workspace: { name: 'me' } }, { name: 'me' });
    await world.attempt(wrong);
    expect((await status(wrong))['Stalled']).toBe(
      "True SeedFailed: seed: workspace me can't be its own seed; a seed can't be changed: make a new Workspace",
    );
    const done = await world.seeded({ configMap: { name: 'empty' } });
    await world.attempt(done);
    expect((await status(done))['Ready']).toBe('True Ready: turns can run');
  });
});

test('turns stay queued while a seed waits, and its next try is not before its time', async () => {
  const workspace = await world.seeded({ workspace: { name: 'never' } });
  const turn = await world.turn(workspace, { command: 'true' });
  const replica = await world.replica();
  const claim = await world.claim(workspace, replica);
  await runSeed(world.deps(), claim, () => undefined, AbortSignal.timeout(10_000));
  expect(await claimed(replica, workspace)).toBe(false);
  expect(await world.store.claimTurn(replica, [])).toBeUndefined();
  expect(await world.store.getTurn(turn)).toMatchObject({ phase: 'Queued' });
});

async function claimed(replica: string, workspace: WorkspaceRow): Promise<boolean> {
  const others: string[] = [];
  for (;;) {
    const claim = await world.store.claimSeed(replica, others);
    if (claim === undefined) return false;
    if (claim.workspace.id === workspace.id) return true;
    others.push(claim.workspace.id);
  }
}
