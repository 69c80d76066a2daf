/** Whole trees on their way in: in few frames, in bounded memory, and no more than what is missing. */
import { randomBytes } from 'node:crypto';
import { mkdirSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { file, gone, link } from './owner.ts';
import { world } from './world.ts';

const MEBI = 1024 * 1024;

test('F7: 20,000 files of 1 KiB come in few frames, without asking for one', async () => {
  await using w = await world();
  const entries = Array.from({ length: 20_000 }, (_, i) =>
    file(`/d${Math.floor(i / 100)}/f${i}`, `${i}`.padEnd(1_024)),
  );
  const before = { broker: w.runtime.peakBytes('broker'), guest: w.runtime.peakBytes('guest') };
  const began = performance.now();
  expect(await w.owner.sync(entries, { to: 2n })).toMatchObject({ error: '', written: 20_000 });
  expect(performance.now() - began).toBeLessThan(10_000);
  expect(w.owner.attached.all('want')).toEqual([]);
  expect(readdirSync(w.runtime.tree).length).toBe(200);
  const grown = {
    broker: w.runtime.peakBytes('broker') - before.broker,
    guest: w.runtime.peakBytes('guest') - before.guest,
  };
  expect(Math.max(grown.broker, grown.guest)).toBeLessThan(64 * MEBI);
});

test('many contents that are asked for come in batches, not one by one', async () => {
  await using w = await world();
  const entries = Array.from({ length: 3_000 }, (_, i) => w.owner.stored(`/f${i}`, `${i}`.padEnd(100)));
  expect(await w.owner.sync(entries, { to: 2n })).toMatchObject({ error: '', written: 3_000 });
  const wants = w.owner.attached.all('want');
  // A page of entries at a time, each with what it lacks.
  expect(wants.length).toBeLessThan(20);
  expect(wants.flatMap((want) => want.sha256)).toHaveLength(3_000);
});

test('a large file comes in bounded memory, and is never seen but whole', async () => {
  await using w = await world();
  const content = randomBytes(96 * MEBI);
  const before = { broker: w.runtime.peakBytes('broker'), guest: w.runtime.peakBytes('guest') };
  let seen = 0;
  const watch = setInterval(() => {
    try {
      seen = statSync(join(w.runtime.tree, 'big')).size;
    } catch {
      // Not yet.
    }
    if (seen !== 0 && seen !== content.length) seen = -1;
  }, 2);
  const synced = await w.owner.sync([w.owner.stored('/big', content)], { to: 2n });
  clearInterval(watch);
  expect(synced).toMatchObject({ error: '', written: 1 });
  expect(seen).not.toBe(-1);
  const grown = {
    broker: w.runtime.peakBytes('broker') - before.broker,
    guest: w.runtime.peakBytes('guest') - before.guest,
  };
  expect(Math.max(grown.broker, grown.guest)).toBeLessThan(64 * MEBI);
});

test('F6: after a cut only what is missing is asked for', async () => {
  await using w = await world();
  const small = Array.from({ length: 40 }, (_, i) => w.owner.stored(`/s${i}`, randomBytes(20_000)));
  const large = w.owner.stored('/big', randomBytes(8 * MEBI));
  // The first half of what was to come.
  w.owner.sendSync(small, { to: 2n }, false);
  const first = await w.owner.attached.first('want');
  for (const hash of first.sha256) w.owner.giveContent(Buffer.from(hash));
  await w.owner.attached.until(() => readdirSync(w.runtime.tree).length >= 40 || undefined, 'half of the tree');
  w.turns.cut();
  const attached = await w.turns.next();
  w.owner.attached = attached;
  await attached.welcome({ epoch: 2n });
  expect(await w.owner.sync([...small, large], { to: 2n })).toMatchObject({ error: '', written: 1 });
  expect(attached.all('want').flatMap((want) => want.sha256)).toEqual([large.sha256]);
  expect(readdirSync(w.runtime.tree).toSorted()).toEqual([...small.map((e) => e.path.slice(1)), 'big'].toSorted());
});

test('what a command made hard to change is changed all the same: read-only folders and files, as an ordinary user', async () => {
  await using w = await world({
    asUser: true,
    entries: [file('/ro/a', 'a'), file('/ro/in/b', 'b'), file('/gone/c', 'c')],
  });
  const ran = await w.owner.run('chmod 0444 ro/a; chmod 0555 ro/in ro gone; mkdir x; touch x/y; chmod 0 x');
  expect(ran.finished.exitCode).toBe(0);
  expect(
    await w.owner.sync([gone('/gone/c'), gone('/x/y'), file('/ro/a', 'A'), file('/ro/in/new', 'n')], {
      from: w.owner.version,
      to: w.owner.version + 1n,
    }),
  ).toMatchObject({ error: '' });
  expect((await w.owner.run('cat ro/a ro/in/new ro/in/b; ls')).stdout).toBe('Anbro\n');
});

test('what stands in our place for files is removed, and told of', async () => {
  await using w = await world();
  const ran = await w.owner.run('mkdir -p .lathe-tmp/sub; ln -s /etc .lathe-tmp/link; echo x > .lathe-tmp-mine');
  expect(ran.skipped.map((s) => s.path).toSorted()).toEqual([
    expect.stringContaining('.lathe-tmp'),
    expect.stringContaining('.lathe-tmp-mine'),
  ]);
  mkdirSync(join(w.runtime.folder, 'outside'));
  writeFileSync(join(w.runtime.folder, 'outside/x'), 'x');
  await w.owner.run('rm -rf .lathe-tmp*; ln -s ../outside .lathe-tmp');
  const big = w.owner.stored('/big', randomBytes(2 * MEBI));
  expect(
    await w.owner.sync([big, file('/a', 'a'), link('/l', 'a')], { from: w.owner.version, to: w.owner.version + 1n }),
  ).toMatchObject({ error: '' });
  expect(readdirSync(join(w.runtime.folder, 'outside'))).toEqual(['x']);
  expect(readdirSync(w.runtime.tree).toSorted()).toEqual(['a', 'big', 'l']);
});
