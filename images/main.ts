/** `npm run images [-- NAME …] [--out FOLDER] [--push REGISTRY] [--json]`: builds the images (all, or those named). */
import { copyFile, mkdir } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { buildImages, NAMES, type Image, type ImageName } from './build.ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { out: { type: 'string' }, push: { type: 'string' }, json: { type: 'boolean', default: false } },
});
const isName = (name: string): name is ImageName => (NAMES as readonly string[]).includes(name);
const named = positionals.filter(isName);
const unknown = positionals.filter((name) => !isName(name));
if (unknown.length > 0) {
  process.stderr.write(`there is no image ${unknown.join(', ')}; there are: ${NAMES.join(', ')}\n`);
  process.exit(2);
}
const stop = new AbortController();
for (const name of ['SIGINT', 'SIGTERM'] as const)
  process.once(name, () => stop.abort(new Error(`stopped by ${name}`)));
try {
  let images = await buildImages(
    {
      ...(named.length === 0 ? {} : { only: named }),
      ...(values.push === undefined ? {} : { push: values.push }),
      onProgress: (line) => void process.stderr.write(`${line}\n`),
    },
    stop.signal,
  );
  if (values.out !== undefined) images = await copies(images, resolve(values.out));
  if (values.json) process.stdout.write(`${JSON.stringify(images)}\n`);
  else for (const { image, archive } of images) process.stdout.write(`${image}=${archive}\n`);
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
}

/** For carrying to other machines: the cache is pruned, this folder is not. */
async function copies(images: readonly Image[], folder: string): Promise<readonly Image[]> {
  await mkdir(folder, { recursive: true });
  return await Promise.all(
    images.map(async (image) => {
      const archive = join(folder, `${image.name}-${image.tag}.tar`);
      await copyFile(image.archive, archive);
      return { ...image, archive };
    }),
  );
}
