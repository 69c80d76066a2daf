/** The runtime's tree as an image volume: not at the root, beside a libc that is not its own. */
import { execFileSync } from 'node:child_process';
import { lstat, mkdir, mkdtemp, readlink, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { isAbsolute, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { buildImages, type Image } from '../../../images/build.ts';
import { nodeCommand } from '../../../operator/controllers/pod.ts';

const build = () => buildImages({ only: ['runtime', 'server'] }, AbortSignal.timeout(120_000));
const out = (program: string, ...args: readonly string[]): string =>
  execFileSync(program, args, { encoding: 'utf8', env: {} });

let images: readonly Image[] = [];
let folder = '';
let root = '';
beforeAll(async () => {
  images = await build();
  folder = await mkdtemp(join(tmpdir(), 'lathe-runtime-'));
  root = join(folder, 'lathe');
  await mkdir(root);
  const archive = images.find((image) => image.name === 'runtime')?.archive ?? '';
  out('/bin/tar', '-C', folder, '-xf', archive);
  for (const { Layers } of JSON.parse(out('/bin/cat', join(folder, 'manifest.json'))) as { Layers: string[] }[])
    for (const layer of Layers) out('/bin/tar', '-C', root, '-xf', join(folder, layer));
}, 120_000);
afterAll(() => rm(folder, { recursive: true, force: true }));

describe('the runtime image', () => {
  test('runs its own Node with its own libraries from wherever it is mounted', () => {
    const [, , loader = '', ...rest] = nodeCommand(root, 'guest.js');
    const libraries = join(root, 'lib');
    const loaded = out(loader, '--library-path', libraries, '--list', join(root, 'bin/node'));
    const from = [...loaded.matchAll(/=> (\S+)/g)].map(([, path = '']) => path);
    expect(from.length).toBeGreaterThan(4);
    expect(from.filter((path) => !path.startsWith(`${root}/`))).toEqual([]);
    expect(out(loader, ...rest.slice(0, -1), '-p', 'process.version')).toMatch(/^v24\./);
  });

  test.for(['guest.js', 'broker.js'])('has every file that the pod names to start %s', async (script) => {
    const paths = nodeCommand(root, script).filter((word) => word.startsWith(root));
    expect(paths).toHaveLength(5);
    for (const path of paths) expect((await lstat(path)).isSymbolicLink(), path).toBe(false);
  });

  test('has shells that need no library', () => {
    expect(out(join(root, 'bin/bash'), '-c', 'echo $BASH_VERSION')).toMatch(/^5\./);
    expect(out(join(root, 'bin/busybox'), 'sh', '-c', 'echo ran')).toBe('ran\n');
  });

  test('has no link that leads out of it', async () => {
    for (const link of ['bin/sh', 'bin/kill', 'lib64/ld-linux-x86-64.so.2'])
      expect(isAbsolute(await readlink(join(root, link))), link).toBe(false);
  });
});

test('an image that did not change is the same image', async () => {
  expect(await build()).toEqual(images);
});

test('server and runtime stand on one base, so that a node holds it once', () => {
  const bases = images.map(({ archive }) => {
    const config = JSON.parse(out('/bin/tar', '-xOf', archive, 'config.json')) as { rootfs: { diff_ids: string[] } };
    return config.rootfs.diff_ids[0];
  });
  expect(bases).toHaveLength(2);
  expect(new Set(bases).size).toBe(1);
});
