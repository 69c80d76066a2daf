/** Layers and images, put together without a daemon: the same bytes for the same inputs, wherever they are built. */
import { createHash } from 'node:crypto';
import { createReadStream, existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { tmpdir } from 'node:os';
import { run } from '../test/cluster/run.ts';

export type ImageConfig = Readonly<{
  Entrypoint?: readonly string[];
  Cmd?: readonly string[];
  Env?: readonly string[];
  User?: string;
  WorkingDir?: string;
}>;

/** A tar of a folder, at `path`. Times, owners and order are fixed, so equal folders give equal layers. */
export async function tarOf(folder: string, path: string, signal: AbortSignal): Promise<void> {
  const fixed = ['--sort=name', '--mtime=@0', '--owner=0', '--group=0', '--numeric-owner', '--format=gnu'];
  await run(['tar', '-C', folder, ...fixed, '-cf', path, '.'], signal);
}

/** Made by `make` in a temporary folder, kept under its key. */
export async function cachedLayer(cache: string, key: string, make: (path: string) => Promise<void>): Promise<string> {
  const path = join(cache, 'layers', `${key}.tar`);
  if (existsSync(path)) return path;
  await mkdir(dirname(path), { recursive: true });
  const beside = await mkdtemp(join(dirname(path), '.making-'));
  try {
    await make(join(beside, 'layer.tar'));
    await rename(join(beside, 'layer.tar'), path);
  } finally {
    await rm(beside, { recursive: true, force: true });
  }
  return path;
}

/** An archive that containerd, Docker and kind load, named `image`. */
export async function writeArchive(
  path: string,
  image: string,
  layers: readonly string[],
  config: ImageConfig,
  signal: AbortSignal,
): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'lathe-image-'));
  try {
    const diffs = await Promise.all(layers.map(sha256));
    const names = layers.map((_, i) => `layer-${i}.tar`);
    for (const [i, layer] of layers.entries()) await run(['ln', '-s', layer, join(folder, names[i] ?? '')], signal);
    const document = {
      architecture: 'amd64',
      os: 'linux',
      created: '1970-01-01T00:00:00Z',
      config,
      rootfs: { type: 'layers', diff_ids: diffs.map((diff) => `sha256:${diff}`) },
      history: layers.map(() => ({ created: '1970-01-01T00:00:00Z', created_by: 'lathe images' })),
    };
    await writeFile(join(folder, 'config.json'), JSON.stringify(document));
    await writeFile(
      join(folder, 'manifest.json'),
      JSON.stringify([{ Config: 'config.json', RepoTags: [image], Layers: names }]),
    );
    await mkdir(dirname(path), { recursive: true });
    // Dereferenced: the layers are links to the cache.
    await run(
      ['tar', '-C', folder, '--dereference', '-cf', `${path}.new`, 'manifest.json', 'config.json', ...names],
      signal,
    );
    await rename(`${path}.new`, path);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function sha256(path: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path) as AsyncIterable<Buffer>) hash.update(chunk);
  return hash.digest('hex');
}

/** Of files and words: what goes into a layer, without making it. */
export async function keyOf(files: readonly string[], words: readonly string[]): Promise<string> {
  const hash = createHash('sha256').update(words.join('\0'));
  for (const file of files) hash.update(await readFile(file));
  return hash.digest('hex').slice(0, 20);
}
