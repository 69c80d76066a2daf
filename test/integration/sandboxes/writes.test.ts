/** Writes that no command makes, beside commands that run: real Postgres, real broker and guest. */
import { createHash } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import type { Write } from '../../../operator/files/plan-write.ts';
import type { OwnedWorkspace } from '../../../operator/sandboxes/ownership.ts';
import type { WriteRequest } from '../../../operator/sandboxes/writer.ts';
import { useSandboxes } from './world.ts';

const world = useSandboxes();
const signal = AbortSignal.timeout(60_000);
const file = (path: string, text: string, more: Partial<Write> = {}) => ({
  path,
  kind: 'regular' as const,
  size: 0,
  content: Buffer.from(text),
  ...more,
});
const gone = (path: string, more: Partial<Write> = {}) => ({ path, kind: 'deleted' as const, size: 0, ...more });
const write = (owned: OwnedWorkspace, writes: WriteRequest['writes'], more: Partial<WriteRequest> = {}) =>
  world.replica.writer(
    owned,
    { origin: 'api', dryRun: false, allOrNothing: false, mayDelete: false, writes, ...more },
    signal,
  );
async function tree(owned: OwnedWorkspace): Promise<string[]> {
  const paths: string[] = [];
  for await (const page of world.store.tree(owned.workspace.id, undefined))
    paths.push(...page.map((e) => `${e.kind[0]} ${e.path}`));
  return paths;
}
const key = (text: string) => ({ key: text, requestSha256: createHash('sha256').update(text).digest() });

describe('a write by the API', () => {
  test('needs no pod, is one version, and the next command sees it', async () => {
    const owned = await world.own(await world.workspace());
    const result = await write(owned, [file('/src/a.txt', 'hello'), file('/run.sh', 'echo $0', { executable: true })]);
    expect(result).toMatchObject({ version: 1n, committed: true, files: { created: 2, changed: 0, deleted: 0 } });
    expect(await world.store.getSandbox(owned.workspace.id)).toBeUndefined();
    expect((await world.run(owned, 'cat src/a.txt; ./run.sh')).head).toBe('hello./run.sh\n');
  });

  test('while a command runs: both are kept, of the same path the first, and the sandbox has both afterwards', async () => {
    const owned = await world.own(await world.workspace());
    await write(owned, [file('/same', 'old'), file('/other', 'old')]);
    let started = (): void => undefined;
    const running = new Promise<void>((resolve) => (started = resolve));
    const command = world.run(owned, 'echo go; echo command > same; echo command > mine; sleep 1', {
      onOutput: () => started(),
    });
    await running;
    const written = await write(owned, [file('/same', 'api'), file('/other', 'api')]);
    expect(written).toMatchObject({ version: 2n, committed: true });
    expect(await command).toMatchObject({ conflicts: ['/same'], fromVersion: 2, toVersion: 3, files: { created: 1 } });
    expect((await world.run(owned, 'cat same other mine')).head).toBe('apiapicommand\n');
    expect(await world.run(owned, 'true')).toMatchObject({ fromVersion: 3, toVersion: 3 });
  });

  test('the same Idempotency-Key answers the same and writes once; another request under it is refused', async () => {
    const owned = await world.own(await world.workspace());
    const first = await write(owned, [file('/a', '1')], { idempotency: key('k') });
    await write(owned, [file('/a', '2')]);
    expect(await write(owned, [file('/a', '1')], { idempotency: key('k') })).toEqual(first);
    expect(owned.head).toBe(2n);
    const other = { ...key('k'), requestSha256: Buffer.alloc(32) };
    await expect(write(owned, [file('/a', '3')], { idempotency: other })).rejects.toMatchObject({ reason: 'Conflict' });
  });

  test('F4: below a link that a command planted nothing is written, and it says so', async () => {
    const owned = await world.own(await world.workspace());
    await world.run(owned, 'ln -s /etc out');
    const { refused, committed } = await write(owned, [file('/out/x', 'x')]);
    expect([committed, refused]).toEqual([
      false,
      [
        {
          path: '/out/x',
          reason: 'Conflict',
          message: '"/out/x" can\'t be written: "/out" is a symlink, which is not followed; remove it first',
        },
      ],
    ]);
  });

  test('a folder stays when its last file goes, and goes when it is removed itself', async () => {
    const owned = await world.own(await world.workspace());
    await write(owned, [file('/d/e/f', 'x'), file('/d/g', 'x')]);
    await write(owned, [gone('/d/e/f')]);
    expect(await tree(owned)).toEqual(['d /d/e', 'r /d/g']);
    // The next command finds it so, and changes nothing.
    expect(await world.run(owned, 'find d | sort')).toMatchObject({
      head: 'd\nd/e\nd/g\n',
      fromVersion: 2,
      toVersion: 2,
    });
    await write(owned, [gone('/d', { recursive: true })]);
    expect(await tree(owned)).toEqual([]);
    expect(await world.run(owned, 'ls')).toMatchObject({ head: '', fromVersion: 3, toVersion: 3 });
  });

  test('F8: most of the tree is not deleted in one write without the right to; with it it is', async () => {
    const owned = await world.own(await world.workspace());
    await write(
      owned,
      [...Array(40).keys()].map((i) => file(`/d/${i}`, 'x')),
    );
    const { committed, refused } = await write(owned, [gone('/d', { recursive: true })]);
    expect([committed, refused.length, refused[0]?.reason]).toEqual([false, 40, 'DeletionsHeld']);
    expect(await write(owned, [gone('/d', { recursive: true })], { mayDelete: true })).toMatchObject({
      committed: true,
      files: { deleted: 40 },
    });
  });

  test('a dry run and an all-or-nothing write that is refused in part change nothing', async () => {
    const owned = await world.own(await world.workspace());
    expect(await write(owned, [file('/a', '1')], { dryRun: true })).toMatchObject({
      version: 0n,
      committed: false,
      files: { created: 1 },
    });
    const both = [file('/a', '1'), file('/b', 'x'.repeat((1 << 20) + 1))];
    expect(await write(owned, both, { allOrNothing: true })).toMatchObject({
      version: 0n,
      committed: false,
      refused: [{ path: '/b', reason: 'FileTooLarge' }],
    });
    expect(await write(owned, both)).toMatchObject({ version: 1n, committed: true, files: { paths: ['/a'] } });
  });

  test('what each version was is kept: whose, by what, how much', async () => {
    const owned = await world.own(await world.workspace());
    await write(owned, [file('/a', '1')], { actor: 'ada' });
    await world.run(owned, 'echo 2 > a; echo > b');
    const rows = await world.store.database.query<Record<string, unknown>>(
      'test-versions',
      'SELECT version, origin, actor, created, changed, deleted FROM version_info WHERE workspace = $1 ORDER BY version',
      [owned.workspace.id],
    );
    expect(rows).toMatchObject([
      { version: 1n, origin: 'api', actor: 'ada', created: 1, changed: 0, deleted: 0 },
      { version: 2n, origin: 'execution', actor: null, created: 1, changed: 1, deleted: 0 },
    ]);
  });

  test('many writers at once: each is one version, none is lost', async () => {
    const owned = await world.own(await world.workspace());
    const results = await Promise.all([...Array(30).keys()].map((i) => write(owned, [file(`/f${i}`, String(i))])));
    expect(new Set(results.map((r) => r.version)).size).toBe(30);
    expect((await tree(owned)).length).toBe(30);
  });

  test('a command that grows beyond the quota of its namespace keeps its result; its files are put back', async () => {
    const workspace = await world.workspace({ namespace: 'small' });
    const owned = await world.own(workspace);
    await world.control.putQuota(workspace.tenant, 100);
    expect(await world.run(owned, 'echo said; head -c 500 /dev/zero > big; echo > small')).toMatchObject({
      exitCode: 0,
      head: 'said\n',
      files: { created: 0 },
      refused: [{ path: '/big', reason: 'QuotaExceeded' }],
    });
    expect(await world.run(owned, 'ls; echo fits > small')).toMatchObject({ head: '', files: { created: 1 } });
    await expect(write(owned, [file('/more', 'x'.repeat(200))])).rejects.toMatchObject({ reason: 'QuotaExceeded' });
  });
});
