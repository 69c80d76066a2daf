/** What every WorkspaceStore promises (AD1). */
import { createHash, randomBytes } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { ExecutionNotDispatched, FenceLost } from '../../../operator/store/database.ts';
import { newId } from '../../../operator/store/ids.ts';
import type { Change, Lease, WorkspaceRow } from '../../../operator/store/rows.ts';
import type { Fixture } from './fixture.ts';

export function storeConformance(f: Fixture): void {
  async function owned(
    options?: Parameters<Fixture['workspace']>[0],
  ): Promise<{ workspace: WorkspaceRow; lease: Lease; replica: string; sandbox: string }> {
    const workspace = await f.workspace(options);
    const replica = await f.replica();
    const got = await f.store.acquire(workspace.id, replica);
    if (!('lease' in got)) throw new Error('a workspace of its own could not be acquired');
    const sandbox = await f.store.demandSandbox(workspace.id);
    return { workspace, lease: got.lease, replica, sandbox: sandbox.id };
  }
  async function put(workspace: WorkspaceRow, path: string, content: string, base = 0n): Promise<Change> {
    const bytes = Buffer.from(content);
    const [sha256] = await f.store.putBlobs(workspace.tenant, [bytes]);
    if (sha256 === undefined) throw new Error('no hash');
    return { path, op: 'put', kind: 'regular', executable: false, size: bytes.length, sha256, base };
  }
  const event = (type = 'test') => ({ type, v: 1, session: 'main', payload: {} });
  const dispatch = (lease: Lease, sandbox: string, id = newId(), more = {}) =>
    f.store.dispatch(lease, { id, command: 'true', timeoutMs: 1_000, sandbox, boot: 'boot', ...more }, [
      { ...event('execution.dispatched'), execution: id },
    ]);
  const finish = (lease: Lease, sandbox: string, id: string, changes: readonly Change[] = [], boot = 'boot') =>
    f.store.commit(lease, {
      execution: { id, sandbox, boot, state: 'done', result: { exitCode: 0 } },
      changes,
      events: [{ ...event('execution.done'), execution: id, payload: { exitCode: 0 } }],
    });
  const paths = async (workspace: string, version?: bigint) => {
    const all: string[] = [];
    for await (const page of f.store.tree(workspace, version)) all.push(...page.map((e) => e.path));
    return all;
  };

  describe('ownership', () => {
    test('a workspace that a live replica owns is refused to another, who is told the address', async () => {
      const { workspace, replica } = await owned();
      const other = await f.replica();
      expect(await f.store.acquire(workspace.id, other)).toEqual({ owner: { replica, address: `${replica}:8443` } });
    });

    test('a released workspace is acquired at a higher epoch, and its former owner can write nothing', async () => {
      const { workspace, lease } = await owned();
      await f.store.release(lease);
      const got = await f.store.acquire(workspace.id, await f.replica());
      expect(got).toMatchObject({ lease: { epoch: lease.epoch + 1n } });
      await expect(
        f.store.commit(lease, { changes: [await put(workspace, '/late', 'late')], events: [] }),
      ).rejects.toThrow(FenceLost);
      expect((await f.store.head(workspace.id)).head).toBe(0n);
    });

    test('the workspace of a replica that is no longer heard of is taken over', async () => {
      const { workspace, replica, lease } = await owned();
      await f.store.database.query(
        'age',
        "UPDATE replica SET heartbeat_at = now() - interval '11 seconds' WHERE id = $1",
        [replica],
      );
      expect(await f.store.acquire(workspace.id, await f.replica())).toMatchObject({
        lease: { epoch: lease.epoch + 1n },
      });
    });

    test('a takeover waits for a commit that is under way, and the commit is whole', async () => {
      const { workspace, lease } = await owned();
      const change = await put(workspace, '/a', 'a');
      const taker = await f.replica();
      const [committed] = await Promise.all([
        f.store.commit(lease, { changes: [change], events: [event()] }),
        f.store.release(lease).then(() => f.store.acquire(workspace.id, taker)),
      ]).catch((error: unknown) => [error]);
      const head = (await f.store.head(workspace.id)).head;
      expect(committed instanceof FenceLost ? 0n : 1n).toBe(head);
    });

    test('another incarnation of the installation drops all ownership', async () => {
      const { workspace, lease } = await owned();
      await f.store.database.query('fail-over', 'UPDATE installation SET incarnation = incarnation + 1', []);
      await expect(f.store.commit(lease, { changes: [], events: [event()] })).rejects.toThrow(FenceLost);
      expect(await f.store.acquire(workspace.id, await f.replica())).toMatchObject({
        lease: { incarnation: lease.incarnation + 1n },
      });
    });
  });

  describe('executions', () => {
    test('S2: a result is taken once, from the sandbox and boot it was sent to, and for nothing that was not sent', async () => {
      const { workspace, lease, sandbox } = await owned();
      const id = newId();
      await dispatch(lease, sandbox, id);
      const forged = await put(workspace, '/forged', 'forged');
      await expect(finish(lease, sandbox, newId(), [forged])).rejects.toThrow(ExecutionNotDispatched);
      await expect(finish(lease, newId(), id, [forged])).rejects.toThrow(ExecutionNotDispatched);
      await expect(finish(lease, sandbox, id, [forged], 'older boot')).rejects.toThrow(ExecutionNotDispatched);
      expect(await paths(workspace.id)).toEqual([]);
      await finish(lease, sandbox, id, [await put(workspace, '/real', 'real')]);
      await expect(finish(lease, sandbox, id, [forged])).rejects.toThrow(ExecutionNotDispatched);
      expect(await paths(workspace.id)).toEqual(['/real']);
    });

    test('a dispatch with a known id or idempotency key returns the first execution', async () => {
      const { lease, sandbox } = await owned();
      const id = newId();
      await dispatch(lease, sandbox, id, { idempotencyKey: 'key' });
      expect(await dispatch(lease, sandbox, id)).toMatchObject({ existing: id });
      expect(await dispatch(lease, sandbox, newId(), { idempotencyKey: 'key' })).toMatchObject({ existing: id });
      expect((await f.store.openExecutions(lease.workspace)).map((x) => x.id)).toEqual([id]);
    });
  });

  describe('files', () => {
    test('FW3: every commit is a version, and the tree of each can be read', async () => {
      const { workspace, lease } = await owned();
      await f.store.commit(lease, {
        changes: [await put(workspace, '/a', '1'), await put(workspace, '/b', '1')],
        events: [],
      });
      await f.store.commit(lease, {
        changes: [await put(workspace, '/a', '2', 1n), { path: '/b', op: 'delete', base: 1n }],
        events: [],
      });
      expect(await paths(workspace.id)).toEqual(['/a']);
      expect(await paths(workspace.id, 1n)).toEqual(['/a', '/b']);
      expect(await f.store.head(workspace.id)).toEqual({ head: 2n, files: 1n, bytes: 1n });
      const difference = await f.store.changesBetween(workspace.id, 1n, 2n);
      expect(difference.map((d) => [d.path, d.before?.version, d.after?.version])).toEqual([
        ['/a', 1n, 2n],
        ['/b', 1n, undefined],
      ]);
    });

    test('a change of a path that moved on meanwhile is left out and named, the rest is committed', async () => {
      const { workspace, lease, sandbox } = await owned();
      await f.store.commit(lease, { changes: [await put(workspace, '/a', '1')], events: [] });
      const id = newId();
      await dispatch(lease, sandbox, id);
      const committed = await finish(lease, sandbox, id, [
        await put(workspace, '/a', 'x', 0n),
        await put(workspace, '/b', 'x', 0n),
      ]);
      expect(committed.conflicts).toEqual(['/a']);
      const done = (await f.store.readEvents(workspace.id, {})).at(-1);
      expect(done).toMatchObject({
        type: 'execution.done',
        payload: { conflicts: ['/a'], fromVersion: 1, toVersion: 2 },
      });
    });

    test('an empty diff makes no version', async () => {
      const { workspace, lease, sandbox } = await owned();
      const id = newId();
      await dispatch(lease, sandbox, id);
      expect((await finish(lease, sandbox, id)).head).toBe(0n);
      expect((await f.store.head(workspace.id)).head).toBe(0n);
    });

    test('FW4: content is stored once per tenant, and a workspace is told only of its own', async () => {
      const { workspace, lease } = await owned({ namespace: 'blobs' });
      const other = await f.workspace({ namespace: 'blobs' });
      const change = await put(workspace, '/a', 'same');
      await f.store.commit(lease, { changes: [change], events: [] });
      const hash = createHash('sha256').update('same').digest();
      expect(await f.store.knownHashes(workspace.id, [hash])).toEqual(new Set([hash.toString('hex')]));
      expect(await f.store.knownHashes(other.id, [hash])).toEqual(new Set());
      await f.store.putBlobs(workspace.tenant, [Buffer.from('same')]);
      const [count] = await f.store.database.query<{ n: bigint }>(
        'blobs-counted',
        'SELECT count(*) AS n FROM blob WHERE tenant = $1',
        [workspace.tenant],
      );
      expect(count?.n).toBe(1n);
    });

    test('a large content comes back byte for byte', async () => {
      const { workspace } = await owned();
      const content = Buffer.alloc(700_000, 'lathe');
      const [sha256] = await f.store.putBlobs(workspace.tenant, [content]);
      const chunks: Buffer[] = [];
      for await (const chunk of f.store.readBlob(workspace.tenant, sha256 ?? Buffer.alloc(0))) chunks.push(chunk);
      expect(Buffer.concat(chunks).equals(content)).toBe(true);
    });

    test.for([0, 1, 255, 300, 256 * 1024, 256 * 1024 + 1, 5 * 1024 * 1024 + 7])(
      'FW4: %i bytes come back whole and in any part, compressible or not, put at once or as a stream',
      async (size) => {
        const { workspace } = await owned();
        const read = async (sha256: Buffer, range?: { from: number; to: number }) => {
          const pieces: Buffer[] = [];
          for await (const piece of f.store.readBlob(workspace.tenant, sha256, undefined, range)) pieces.push(piece);
          return Buffer.concat(pieces);
        };
        for (const content of [Buffer.alloc(size, 'text '), randomBytes(size)]) {
          const stream = async function* () {
            for (let at = 0; at < size; at += 100_000) yield content.subarray(at, at + 100_000);
          };
          const streamed = await f.store.putBlobStream(workspace.tenant, stream());
          expect(streamed).toEqual({ size, sha256: createHash('sha256').update(content).digest() });
          const [put] = await f.store.putBlobs((await owned({ namespace: 'blobs-at-once' })).workspace.tenant, [
            content,
          ]);
          expect(put).toEqual(streamed.sha256);
          expect((await read(streamed.sha256)).equals(content)).toBe(true);
          const range = { from: Math.floor(size / 3), to: size - 1 };
          expect((await read(streamed.sha256, range)).equals(content.subarray(range.from, Math.max(range.to, 0)))).toBe(
            true,
          );
          const small = await f.store.readSmallBlobs(workspace.tenant, [streamed.sha256]);
          expect(small.get(streamed.sha256.toString('hex'))?.equals(content)).toBe(
            size > 256 * 1024 ? undefined : true,
          );
        }
      },
    );

    test('FW4: a stream that breaks leaves nothing behind', async () => {
      const { workspace } = await owned({ namespace: 'broken' });
      const stream = async function* () {
        for (let i = 0; i < 60; i += 1) yield randomBytes(100_000);
        throw new Error('the other side went away');
      };
      await expect(f.store.putBlobStream(workspace.tenant, stream())).rejects.toThrow('went away');
      const [left] = await f.store.database.query<{ n: bigint }>(
        'blobs-left',
        'SELECT (SELECT count(*) FROM blob WHERE tenant = $1) + (SELECT count(*) FROM blob_staging) AS n',
        [workspace.tenant],
      );
      expect(left?.n).toBe(0n);
    });
  });

  describe('contents of any size', () => {
    const counted = async (tenant: string) =>
      (
        await f.store.database.query<{ blobs: bigint; chunks: bigint }>(
          'stream-counted',
          'SELECT (SELECT count(*) FROM blob WHERE tenant = $1) AS blobs, (SELECT count(*) FROM blob_chunk WHERE tenant = $1) AS chunks',
          [tenant],
        )
      )[0];
    const read = async (tenant: string, sha256: Buffer) => {
      const chunks: Buffer[] = [];
      for await (const chunk of f.store.readBlob(tenant, sha256)) chunks.push(chunk);
      return Buffer.concat(chunks);
    };
    async function* pieces(content: Buffer, size: number): AsyncIterable<Buffer> {
      for (let at = 0; at < content.length; at += size) yield content.subarray(at, at + size);
    }

    test.for([0, 1, 262_143, 262_144, 262_145, 1_048_576, 1_048_577, 5_000_001])(
      '%d bytes that arrive in pieces are stored once, under their hash',
      async (length) => {
        const { tenant } = await f.workspace({ namespace: `stream-${length}` });
        const content = Buffer.alloc(length, 'a stream that is not the same everywhere ');
        const sha256 = createHash('sha256').update(content).digest();
        for (const size of [1_000_003, 70_001])
          expect(await f.store.putBlobStream(tenant, pieces(content, size))).toEqual({ sha256, size: length });
        expect((await read(tenant, sha256)).equals(content)).toBe(true);
        expect(await counted(tenant)).toEqual({ blobs: 1n, chunks: BigInt(Math.ceil(length / 262_144)) });
      },
    );

    test('F6: a content that breaks off in the middle is not there', async () => {
      const { tenant } = await f.workspace({ namespace: 'stream-broken' });
      async function* broken(): AsyncIterable<Buffer> {
        yield Buffer.alloc(3_000_000, 'x');
        throw new Error('broken off');
      }
      await expect(f.store.putBlobStream(tenant, broken())).rejects.toThrow('broken off');
      expect(await counted(tenant)).toEqual({ blobs: 0n, chunks: 0n });
    });
  });

  describe('the log', () => {
    test('FW7: events have one sequence per workspace without gaps, and filters of it', async () => {
      const { workspace, lease } = await owned();
      await f.store.commit(lease, { changes: [], events: [event('a'), { ...event('b'), session: 'other' }] });
      await f.store.commit(lease, { changes: [], events: [event('c')] });
      expect((await f.store.readEvents(workspace.id, {})).map((e) => [e.seq, e.type])).toEqual([
        [1n, 'a'],
        [2n, 'b'],
        [3n, 'c'],
      ]);
      expect((await f.store.readEvents(workspace.id, { session: 'main', after: 1n })).map((e) => e.type)).toEqual([
        'c',
      ]);
    });

    test('a payload over 8 KiB comes back whole', async () => {
      const { workspace, lease } = await owned();
      const text = 'x'.repeat(50_000);
      await f.store.commit(lease, { changes: [], events: [{ ...event('large'), payload: { text } }] });
      expect((await f.store.readEvents(workspace.id, {}))[0]?.payload).toEqual({ text });
    });

    test('TL20: nobody changes or removes an event', async () => {
      const { lease } = await owned();
      await f.store.commit(lease, { changes: [], events: [event()] });
      await expect(f.store.database.query('tamper', "UPDATE event SET type = 'x'", [])).rejects.toThrow(/only added/);
      await expect(f.store.database.query('remove', 'DELETE FROM event', [])).rejects.toThrow(/only added/);
    });
  });

  describe('turns', () => {
    test('turns of a workspace are claimed one at a time, in the order they were made', async () => {
      const workspace = await f.workspace();
      const first = await f.turn(workspace, { command: '1' });
      const second = await f.turn(workspace, { command: '2' });
      const replica = await f.replica();
      const claim = await claimOf(replica, workspace.id);
      expect(claim.turn.id).toBe(first);
      expect(await tryClaim(replica, workspace.id, [first])).toBeUndefined();
      await f.store.commit(claim.lease, {
        changes: [],
        events: [],
        turn: { id: first, phase: 'Completed', finished: true },
      });
      expect((await claimOf(replica, workspace.id)).turn.id).toBe(second);
    });

    test('a running turn is claimed by another replica only once its owner is gone', async () => {
      const workspace = await f.workspace();
      await f.turn(workspace, { command: '1' });
      const [first, second] = [await f.replica(), await f.replica()];
      const claim = await claimOf(first, workspace.id);
      expect(await tryClaim(second, workspace.id)).toBeUndefined();
      await f.store.releaseAll(first);
      const again = await claimOf(second, workspace.id);
      expect(again.turn.id).toBe(claim.turn.id);
      await expect(f.store.commit(claim.lease, { changes: [], events: [] })).rejects.toThrow(FenceLost);
    });

    test('a running turn whose workspace came to a replica by other ways is claimed by it, unless it runs it already', async () => {
      const workspace = await f.workspace();
      const turn = await f.turn(workspace, { command: '1' });
      const [gone, heir] = [await f.replica(), await f.replica()];
      await claimOf(gone, workspace.id);
      await f.store.releaseAll(gone);
      // What the attach of its broker does.
      const acquired = await f.store.acquire(workspace.id, heir);
      const claim = await claimOf(heir, workspace.id);
      expect(claim.turn.id).toBe(turn);
      expect(acquired).toEqual({ lease: claim.lease });
      expect(await tryClaim(heir, workspace.id, [turn])).toBeUndefined();
    });

    test('a workspace whose seed is not in yet has no turn to claim', async () => {
      const workspace = await f.workspace({ seed: true });
      await f.turn(workspace, { command: '1' });
      const replica = await f.replica();
      expect(await tryClaim(replica, workspace.id)).toBeUndefined();
      await f.control.putSeed(workspace.id, [{ path: '/a', executable: false, content: Buffer.from('a') }]);
      const seed = await f.store.claimSeed(replica, []);
      expect(seed?.entries).toMatchObject([{ path: '/a' }]);
      if (seed !== undefined) await f.store.finishSeed(seed.lease, undefined);
      expect(await tryClaim(replica, workspace.id)).toBeDefined();
    });
  });

  async function tryClaim(replica: string, workspace: string, running: readonly string[] = []) {
    // Other tests leave turns too: put those of other workspaces back at the end.
    const others: { id: string; lease: Lease }[] = [];
    for (;;) {
      const claim = await f.store.claimTurn(replica, [...running, ...others.map((o) => o.id)]);
      if (claim === undefined || claim.workspace.id === workspace) {
        for (const o of others)
          await f.store.commit(o.lease, { changes: [], events: [], turn: { id: o.id, phase: 'Cancelled' } });
        return claim;
      }
      others.push({ id: claim.turn.id, lease: claim.lease });
    }
  }
  async function claimOf(replica: string, workspace: string) {
    const claim = await tryClaim(replica, workspace);
    if (claim === undefined) throw new Error('there was no turn to claim');
    return claim;
  }
}
