/** The four images: server, runtime, sandbox, postgres. What did not change is taken from the cache, in moments. */
import { existsSync } from 'node:fs';
import { utimes } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { dockerAnswers } from '../test/cluster/kind.ts';
import { cacheRoot } from '../test/cluster/layout.ts';
import { ensurePackages } from '../test/cluster/packages.ts';
import { tagOf, writeArchive } from './archive.ts';
import { buildInDocker } from './in-docker.ts';
import type { Workshop } from './layers.ts';
import { postgres } from './postgres.ts';
import { prune } from './prune.ts';
import { pushImage } from './push.ts';
import type { Recipe } from './recipe.ts';
import { runtime } from './runtime.ts';
import { sandbox } from './sandbox.ts';
import { server } from './server.ts';

export type ImageName = (typeof NAMES)[number];
export type Image = Readonly<{ name: string; repository: string; tag: string; image: string; archive: string }>;
export type BuildOptions = Readonly<{
  only?: readonly ImageName[];
  /** Registry (and folder) to push to; the images are then named after it. */
  push?: string;
  onProgress?: (line: string) => void;
}>;

export const NAMES = ['server', 'runtime', 'sandbox', 'postgres'] as const;
const RECIPES: Readonly<Record<ImageName, Recipe>> = { server, runtime, sandbox, postgres };
/** No registry: images of this name are loaded, never pulled. */
const NOWHERE = 'lathe.dev';

/** Aborting leaves no half image: layers and archives are put in their place whole. */
export async function buildImages(options: BuildOptions, signal: AbortSignal): Promise<readonly Image[]> {
  const say = options.onProgress ?? (() => undefined);
  const only = options.only ?? NAMES;
  const built = (await isForDocker(signal))
    ? await buildInDocker(only, cacheRoot(), say, signal)
    : await buildHere(only, say, signal);
  const { push } = options;
  if (push === undefined) return built;
  const pushed: Image[] = [];
  for (const image of built) {
    const repository = `${push}/${image.name}`;
    const to = `${repository}:${image.tag}`;
    await timed(`pushed ${to}`, say, () => pushImage(image.archive, image.image, to, say, signal));
    pushed.push({ ...image, repository, image: to });
  }
  return pushed;
}

/** Root on Debian installs what is missing and needs no container. */
async function isForDocker(signal: AbortSignal): Promise<boolean> {
  const canInstall = process.getuid?.() === 0 && existsSync('/usr/bin/apt-get');
  return !canInstall && (await dockerAnswers(signal));
}

async function buildHere(
  only: readonly ImageName[],
  say: (line: string) => void,
  signal: AbortSignal,
): Promise<readonly Image[]> {
  await ensurePackages(['mmdebstrap', 'debian-archive-keyring', 'tar'], say, signal);
  const workshop: Workshop = { cache: join(cacheRoot(), 'images'), say };
  const images: Image[] = [];
  const used = new Set<string>();
  for (const name of only) {
    signal.throwIfAborted();
    await timed(`image ${name}`, say, async () => {
      const { layers: make, config } = RECIPES[name];
      const layers = await make(workshop, signal);
      const tag = tagOf(layers, config);
      const repository = `${NOWHERE}/${name}`;
      const image = `${repository}:${tag}`;
      const archive = join(workshop.cache, 'archives', `${name}-${tag}.tar`);
      if (!existsSync(archive)) await writeArchive(archive, image, layers, config, signal);
      await utimes(archive, new Date(), new Date());
      for (const layer of layers) used.add(basename(dirname(layer.path)));
      used.add(basename(archive));
      images.push({ name, repository, tag, image, archive });
    });
  }
  await prune(join(workshop.cache, 'archives'), used);
  await prune(join(workshop.cache, 'layers'), used);
  return images;
}

async function timed(what: string, say: (line: string) => void, work: () => Promise<void>): Promise<void> {
  const began = performance.now();
  await work();
  say(`${what}: ${((performance.now() - began) / 1000).toFixed(1)} s`);
}
