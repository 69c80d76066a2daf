/** `npm run images [-- NAME …] [--push REGISTRY] [--json]`: builds the images (all, or those named). */
import { parseArgs } from 'node:util';
import { buildImages, NAMES, type ImageName } from './build.ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { push: { type: 'string' }, json: { type: 'boolean', default: false } },
});
const unknown = positionals.filter((name) => !NAMES.includes(name as ImageName));
if (unknown.length > 0) {
  process.stderr.write(`there is no image ${unknown.join(', ')}; there are: ${NAMES.join(', ')}\n`);
  process.exit(2);
}
const stop = new AbortController();
for (const name of ['SIGINT', 'SIGTERM'] as const)
  process.once(name, () => stop.abort(new Error(`stopped by ${name}`)));
try {
  const images = await buildImages(
    {
      ...(positionals.length === 0 ? {} : { only: positionals as ImageName[] }),
      ...(values.push === undefined ? {} : { push: values.push }),
      onProgress: (line) => void process.stderr.write(`${line}\n`),
    },
    stop.signal,
  );
  if (values.json) process.stdout.write(`${JSON.stringify(images)}\n`);
  else for (const { image, archive } of images) process.stdout.write(`${image}=${archive}\n`);
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
}
