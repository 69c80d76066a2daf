/** The four images: server, runtime, sandbox, postgres. What did not change is taken from the cache, in moments. */
import { existsSync } from 'node:fs';
import { utimes } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { cacheRoot } from '../test/cluster/layout.ts';
import { ensurePackages } from '../test/cluster/packages.ts';
import { tagOf, writeArchive } from './archive.ts';
import type { Workshop } from './layers.ts';
import { postgres } from './postgres.ts';
import { prune } from './prune.ts';
import { pushImage } from './push.ts';
import type { Recipe } from './recipe.ts';
import { runtime } from './runtime.ts';
import { sandbox } from './sandbox.ts';
import { server } from './server.ts';

export type ImageName = (typeof NAMES)[number];
export type Image = Readonly<{ name: ImageName; repository: string; tag: string; image: string; archive: string }>;
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
  const workshop: Workshop = { cache: join(cacheRoot(), 'images'), say };
  await ensurePackages(['mmdebstrap', 'tar'], say, signal);
  const images: Image[] = [];
  const used = new Set<string>();
  for (const name of options.only ?? NAMES) {
    signal.throwIfAborted();
    const began = performance.now();
    const { layers: make, config } = RECIPES[name];
    const layers = await make(workshop, signal);
    const tag = tagOf(layers, config);
    const repository = `${options.push ?? NOWHERE}/${name}`;
    const image = `${repository}:${tag}`;
    const archive = join(
      workshop.cache,
      'archives',
      `${name}${options.push === undefined ? '' : '-pushed'}-${tag}.tar`,
    );
    // Another registry, another name inside: such an archive is never taken from the cache.
    if (options.push !== undefined || !existsSync(archive)) await writeArchive(archive, image, layers, config, signal);
    await utimes(archive, new Date(), new Date());
    if (options.push !== undefined) await pushImage(archive, image, say, signal);
    for (const layer of layers) used.add(basename(dirname(layer.path)));
    used.add(basename(archive));
    images.push({ name, repository, tag, image, archive });
    say(`image ${image}: ${((performance.now() - began) / 1000).toFixed(1)} s`);
  }
  await prune(join(workshop.cache, 'archives'), used);
  await prune(join(workshop.cache, 'layers'), used);
  return images;
}
