/** Our programs as one file each. In development the sources run as they are; only images hold bundles. */
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
export const PROGRAMS = {
  lathe: 'operator/main.ts',
  broker: 'agent-runtime/broker/main.ts',
  guest: 'agent-runtime/guest/main.ts',
  'kubectl-lathe': 'cli/main.ts',
} as const;

/** Writes NAME.js into `folder`. */
export async function bundle(name: keyof typeof PROGRAMS, folder: string): Promise<string> {
  const outfile = join(folder, `${name}.js`);
  await build({
    entryPoints: [join(ROOT, PROGRAMS[name])],
    outfile,
    bundle: true,
    platform: 'node',
    target: 'node24',
    format: 'esm',
    minify: false,
    // Packages that are CommonJS inside an ES module still call require.
    banner: {
      js: "import { createRequire as lathe_createRequire } from 'node:module'; const require = lathe_createRequire(import.meta.url);",
    },
    external: ['pg-native'],
    logLevel: 'error',
  });
  return outfile;
}
