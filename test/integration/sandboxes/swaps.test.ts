/** A process of the sandbox that outlived its command swaps folders for links as fast as it can, while trees go in and out. */
import { spawn, type ChildProcess } from 'node:child_process';
import { mkdirSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { Change } from '../../../operator/store/rows.ts';
import { EFFECTIVE } from '../store/fixture.ts';
import { treeOfHead, treeOnDisk } from './tree.ts';
import { useSandboxes } from './world.ts';

const world = useSandboxes();
const SECRET = 'this is outside of the workspace';
const FILES = 200;

/** Renames a folder away and puts a link in its place, and back, for ever. */
const SWAPPER = `
  const fs = require('node:fs');
  const [, root, outside] = process.argv;
  process.chdir(root);
  let swaps = 0;
  const attempt = (what) => { try { what(); swaps += 1; } catch {} };
  process.on('SIGTERM', () => { process.stdout.write(String(swaps)); process.exit(0); });
  (function again() {
    for (let i = 0; i < 200; i += 1) {
      for (const name of ['d', 'd/e', 'd/e/f']) {
        // A hydrate that came between has made another one.
        attempt(() => fs.existsSync('aside') && fs.rmSync('aside', { recursive: true, force: true }));
        attempt(() => fs.renameSync(name, 'aside'));
        attempt(() => fs.symlinkSync(outside, name));
        attempt(() => fs.unlinkSync(name));
        attempt(() => fs.renameSync('aside', name));
      }
    }
    setImmediate(again);
  })();
`;

test('S4: nothing outside is read or written while folders are swapped for links, by hydrate, collect and removal', async () => {
  const workspace = await world.workspace({
    effective: { files: { ...EFFECTIVE.files, deletions: { ratio: 100, atLeast: 1_000_000 } } },
  });
  const owned = await world.own(workspace);
  const root = join(world.folder, workspace.id, 'workspace');
  const outside = join(world.folder, 'outside');
  mkdirSync(join(outside, 'e/f'), { recursive: true });
  for (let i = 0; i < FILES; i += 1) {
    // The same names as inside: whatever goes through the link finds something.
    for (const folder of ['', 'e', 'e/f']) writeFileSync(join(outside, folder, `file-${i}`), SECRET, { mode: 0o644 });
  }
  const before = treeOnDisk(outside);
  const modes = modesOf(outside);
  await world.run(
    owned,
    `mkdir -p d/e/f; for i in $(seq 0 ${FILES - 1}); do echo $i > d/e/f/file-$i; echo $i > d/e/file-$i; done`,
  );

  const swapper = spawn(process.execPath, ['-e', SWAPPER, root, outside], { stdio: ['ignore', 'pipe', 'inherit'] });
  const swaps = outputOf(swapper);
  let ran = 0;
  let failed = 0;
  try {
    for (let round = 0; round < 12; round += 1) {
      // Goes in: others change files and their modes, then a command asks for that version.
      owned.moved((await change(round)).head);
      if (round % 3 === 2) {
        world.provider.sandboxes.get(workspace.id)?.guest.kill('SIGKILL');
        world.provider.restart(workspace.id, 'guest');
      }
      // Comes out: whatever the tree looks like at that moment. The command itself keeps away from the links: it would follow.
      await world.run(owned, 'date +%N > top', { signal: AbortSignal.timeout(4_000) }).then(
        () => (ran += 1),
        () => (failed += 1),
      );
      for (const what of Object.values(await contentsOfHead())) expect(what).not.toContain('outside');
      expect(treeOnDisk(outside)).toEqual(before);
      expect(modesOf(outside)).toEqual(modes);
    }
  } finally {
    swapper.kill('SIGTERM');
  }
  const count = Number(await swaps);
  process.stdout.write(`S4: ${count} swaps, ${ran} commands ran, ${failed} did not\n`);
  expect(count).toBeGreaterThan(1_000);
  expect(ran).toBeGreaterThan(0);
  // Once it is gone everything is as it should be.
  await world.run(owned, 'true');
  expect(treeOnDisk(root)).toEqual(await treeOfHead(world.store, workspace.id));

  async function change(round: number) {
    const [sha256] = await world.store.putBlobs(workspace.tenant, [Buffer.from(`round ${round}`)]);
    const paths = Array.from({ length: FILES }, (_, i) => (i % 2 === 0 ? `/d/e/f/file-${i}` : `/d/e/file-${i}`));
    const at = await world.store.entriesAt(workspace.id, paths, owned.head);
    const changes = paths.map((path): Change => ({
      path,
      op: 'put',
      kind: 'regular',
      executable: round % 2 === 0,
      size: `round ${round}`.length,
      base: at.get(path)?.version ?? 0n,
      ...(sha256 === undefined ? {} : { sha256 }),
    }));
    // What was taken for links stands in the way.
    const others = Object.keys(await treeOfHead(world.store, workspace.id)).filter((path) => !paths.includes(path));
    const there = await world.store.entriesAt(workspace.id, others, owned.head);
    for (const { path, version } of there.values()) changes.push({ path, op: 'delete', base: version });
    return await world.store.commit(owned.lease, { changes, events: [] });
  }

  async function contentsOfHead(): Promise<Record<string, string>> {
    const all: Record<string, string> = {};
    for await (const page of world.store.tree(workspace.id, undefined)) {
      const contents = await world.store.readSmallBlobs(
        workspace.tenant,
        page.flatMap((entry) => entry.sha256 ?? []),
      );
      for (const { path, sha256 } of page)
        if (sha256 !== null) all[path] = contents.get(sha256.toString('hex'))?.toString() ?? '';
    }
    return all;
  }
}, 120_000);

function modesOf(folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .map((name) => `${name} ${(statSync(join(folder, name)).mode & 0o7777).toString(8)}`)
    .toSorted();
}

async function outputOf(child: ChildProcess): Promise<string> {
  let text = '';
  child.stdout?.on('data', (data: Buffer) => (text += data.toString()));
  await new Promise((resolve) => child.once('close', resolve));
  return text;
}
