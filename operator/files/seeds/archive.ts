/** A seed from an archive of the web: fetched whole, its hash compared, then unpacked as a stream. */
import { join } from 'node:path';
import type { SeedSpec } from '../../../crds/types.ts';
import { PermanentError } from '../../errors.ts';
import { download } from './fetch.ts';
import type { Origin, SourceContext } from './source.ts';
import { untar } from './tar.ts';
import { limitsOf, withinDisk } from './tree.ts';
import { unzip } from './zip.ts';

type ArchiveSpec = NonNullable<SeedSpec['archive']>;

/** What does not compress comes with some headers. */
const SLACK_BYTES = 16 * 1024 * 1024;
const ENDINGS = {
  '.tar.gz': 'tar.gz',
  '.tgz': 'tar.gz',
  '.tar.zst': 'tar.zst',
  '.tzst': 'tar.zst',
  '.zip': 'zip',
} as const;

export async function seedFromArchive(spec: ArchiveSpec, context: SourceContext): Promise<Origin> {
  const { deps, tree, progress, signal } = context;
  const format = spec.format ?? formatOf(spec.url);
  const limits = limitsOf(context.workspace.effective.files);
  const onDisk = withinDisk(limits, deps.diskBytes);
  const path = join(context.folder, 'archive');
  progress.phase = 'fetching';
  const bytes = await download(
    spec,
    path,
    {
      bytes: Math.min(onDisk.totalBytes + SLACK_BYTES, deps.diskBytes ?? Infinity),
      onBytes: (n) => (progress.bytes = n),
    },
    deps,
    signal,
  );
  progress.phase = 'unpacking';
  delete progress.bytes;
  const strip = spec.stripComponents ?? 0;
  if (format === 'zip') await unzip(path, strip, tree, signal);
  else await untar(path, format, strip, tree, limits, signal);
  return { archive: { url: spec.url, sha256: spec.sha256, bytes } };
}

function formatOf(url: string): 'tar.gz' | 'tar.zst' | 'zip' {
  const { pathname } = new URL(url);
  for (const [ending, format] of Object.entries(ENDINGS)) if (pathname.toLowerCase().endsWith(ending)) return format;
  throw new PermanentError(
    'SeedFailed',
    `archive.url does not end in ${Object.keys(ENDINGS).join(', ')}; say what it is in archive.format`,
  );
}
