/** `lathe.dev/postgres`: Debian's Postgres, for clusters that reach no registry. The official image works as well. */
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { debianLayer, type DebianOptions } from './debian.ts';
import { keyOf, layerOf, place, type Layer, type Workshop } from './layers.ts';
import { repository, type Recipe } from './recipe.ts';

const DEBIAN: DebianOptions = {
  name: 'postgres',
  packages: ['postgresql-15'],
  // Just-in-time compilation, which helps analysts: 150 MB. Without these files the server does not try.
  without: [
    '/usr/lib/x86_64-linux-gnu/libLLVM*',
    '/usr/lib/x86_64-linux-gnu/libz3*',
    '/usr/lib/postgresql/15/lib/bitcode/*',
    '/usr/lib/postgresql/15/lib/llvmjit*',
  ],
  // The package makes a cluster of its own, under another user.
  hooks: ['rm -rf "$1"/var/lib/postgresql/* "$1"/etc/postgresql/*'],
};
const START = repository('images/start-postgres.sh');

export const postgres: Recipe = {
  layers: async (workshop, signal) => [await debianLayer(DEBIAN, workshop, signal), await start(workshop, signal)],
  config: {
    Entrypoint: ['/usr/local/bin/start-postgres'],
    Env: ['PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/bin:/bin', 'LANG=C.UTF-8'],
    User: '65534:65534',
    // Postgres takes SIGTERM for "when the last client has gone", which is never.
    StopSignal: 'SIGINT',
  },
};

async function start(workshop: Workshop, signal: AbortSignal): Promise<Layer> {
  const key = await keyOf('postgres', [], [START, fileURLToPath(import.meta.url)]);
  return await layerOf(workshop, key, (root) => place(START, join(root, 'usr/local/bin/start-postgres')), signal);
}
