/** `lathe.dev/server`: operator, turns and migrate, one program. */
import { readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { baseLayer } from './base.ts';
import { bundle } from './bundle.ts';
import { gitLayer } from './git.ts';
import { keyOf, layerOf, place, withFolder, type Layer, type Workshop } from './layers.ts';
import { repository, type Recipe } from './recipe.ts';

export const server: Recipe = {
  layers: async (workshop, signal) => [
    await baseLayer(workshop, signal),
    await gitLayer(workshop, signal),
    await program(workshop, signal),
  ],
  config: {
    // Under an init Node is no PID 1: it can be killed from inside, and what it leaves behind is reaped.
    Entrypoint: ['/bin/init', '--', '/bin/node', '--max-semi-space-size=4', '/app/lathe.js'],
    Env: ['PATH=/bin', 'NODE_ENV=production'],
    User: '65532:65532',
    WorkingDir: '/app',
  },
};

async function program(workshop: Workshop, signal: AbortSignal): Promise<Layer> {
  return await withFolder(async (folder) => {
    const bundled = await bundle('lathe', folder);
    const migrations = repository('operator/store/migrations');
    const names = (await readdir(migrations)).toSorted();
    const files = [bundled, ...names.map((name) => join(migrations, name)), fileURLToPath(import.meta.url)];
    return await layerOf(
      workshop,
      await keyOf('server', names, files),
      async (root) => {
        await place(bundled, join(root, 'app/lathe.js'), 0o644);
        await writeFile(join(root, 'app/package.json'), '{"type":"module"}\n');
        for (const name of names) await place(join(migrations, name), join(root, 'app/migrations', name), 0o644);
      },
      signal,
    );
  });
}
