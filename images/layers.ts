/** Layers of images: made once, kept in the cache under what they are made of. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { chmod, copyFile, mkdir, mkdtemp, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { run } from '../test/cluster/run.ts';

export type Layer = Readonly<{ path: string; sha256: string }>;
/** Where layers are made and kept, and whom to tell. */
export type Workshop = Readonly<{ cache: string; say: (line: string) => void }>;

/** A layer made by `make` as a tar at the path it is given. Two builds at once: the first one's is kept. */
export async function cachedLayer(
  workshop: Workshop,
  key: string,
  make: (path: string) => Promise<void>,
): Promise<Layer> {
  const folder = join(workshop.cache, 'layers', key);
  const found = await read(folder);
  if (found !== undefined) return found;
  await mkdir(dirname(folder), { recursive: true });
  const beside = await mkdtemp(join(dirname(folder), '.making-'));
  try {
    await make(join(beside, 'layer.tar'));
    await writeFile(join(beside, 'sha256'), await sha256Of(join(beside, 'layer.tar')));
    await chmod(beside, 0o755);
    // A folder can't be renamed onto one that has files.
    await rename(beside, folder).catch(() => undefined);
  } finally {
    await rm(beside, { recursive: true, force: true });
  }
  const made = await read(folder);
  if (made === undefined)
    throw new Error(`layer ${key} can't be kept in ${folder}; is the cache writable and not full?`);
  return made;
}

/** Reading one is using it: what nobody used for long is pruned. */
async function read(folder: string): Promise<Layer | undefined> {
  const sha256 = await readFile(join(folder, 'sha256'), 'utf8').catch(() => undefined);
  if (sha256 === undefined) return undefined;
  const now = new Date();
  await utimes(folder, now, now);
  return { path: join(folder, 'layer.tar'), sha256 };
}

/** A layer of the files that `fill` puts into an empty folder. */
export async function layerOf(
  workshop: Workshop,
  key: string,
  fill: (root: string) => Promise<void>,
  signal: AbortSignal,
): Promise<Layer> {
  return await cachedLayer(workshop, key, (path) =>
    withFolder(async (root) => {
      await fill(root);
      await tarOf(root, path, signal);
    }),
  );
}

/** Times, owners, modes and order are fixed, so equal folders give equal layers, whatever the umask was. */
export async function tarOf(folder: string, path: string, signal: AbortSignal): Promise<void> {
  const fixed = ['--sort=name', '--mtime=@0', '--owner=0', '--group=0', '--numeric-owner', '--format=gnu'];
  await run(['tar', '-C', folder, ...fixed, '--mode=u+rwX,go+rX,go-w', '-cf', path, '.'], signal);
}

/** Of words and of what is in files: names a layer without making it. */
export async function keyOf(name: string, words: readonly string[], files: readonly string[] = []): Promise<string> {
  const hash = createHash('sha256').update(JSON.stringify(words));
  for (const file of files) hash.update(`\n${(await stat(file)).size}\n`).update(await readFile(file));
  return `${name}-${hash.digest('hex').slice(0, 20)}`;
}

export async function withFolder<T>(work: (folder: string) => Promise<T>): Promise<T> {
  const folder = await mkdtemp(join(tmpdir(), 'lathe-images-'));
  try {
    return await work(folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** A program or file, with the folders it needs. */
export async function place(from: string, to: string, mode = 0o755): Promise<void> {
  await mkdir(dirname(to), { recursive: true });
  await copyFile(from, to);
  await chmod(to, mode);
}

async function sha256Of(path: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path) as AsyncIterable<Buffer>) hash.update(chunk);
  return hash.digest('hex');
}
