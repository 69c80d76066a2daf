/** `lathe.dev/runtime`: the broker's image, and the image volume at /lathe of every `work` container. */
import { writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { baseLayer } from './base.ts';
import { bundle } from './bundle.ts';
import { keyOf, layerOf, place, withFolder, type Layer, type Workshop } from './layers.ts';
import type { Recipe } from './recipe.ts';

export const runtime: Recipe = {
  layers: async (workshop, signal) => [await baseLayer(workshop, signal), await programs(workshop, signal)],
  config: {
    Entrypoint: ['/bin/init', '--', '/bin/node', '/broker.js'],
    Env: ['PATH=/bin'],
    User: '65531:65532',
    WorkingDir: '/',
  },
};

async function programs(workshop: Workshop, signal: AbortSignal): Promise<Layer> {
  return await withFolder(async (folder) => {
    const bundles = [await bundle('broker', folder), await bundle('guest', folder)];
    return await layerOf(
      workshop,
      await keyOf('runtime', [], [...bundles, fileURLToPath(import.meta.url)]),
      async (root) => {
        for (const path of bundles) await place(path, join(root, basename(path)), 0o644);
        await writeFile(join(root, 'package.json'), '{"type":"module"}\n');
      },
      signal,
    );
  });
}
