/** One file with a whole image, as containerd, Docker, kind and skopeo load it. */
import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { run } from '../test/cluster/run.ts';
import type { Layer } from './layers.ts';

export type ImageConfig = Readonly<{
  Entrypoint?: readonly string[];
  Cmd?: readonly string[];
  Env?: readonly string[];
  User?: string;
  WorkingDir?: string;
  StopSignal?: string;
}>;

/** Of the content: two machines that built the same say the same, and only the same. */
export function tagOf(layers: readonly Layer[], config: ImageConfig): string {
  return createHash('sha256').update(documentOf(layers, config)).digest('hex').slice(0, 20);
}

/** Named `image`; put in its place whole. */
export async function writeArchive(
  path: string,
  image: string,
  layers: readonly Layer[],
  config: ImageConfig,
  signal: AbortSignal,
): Promise<void> {
  await mkdir(dirname(path), { recursive: true });
  const folder = await mkdtemp(join(dirname(path), '.making-'));
  try {
    const names = layers.map((_, i) => `layer-${i}.tar`);
    for (const [i, layer] of layers.entries()) {
      const to = join(folder, names[i] ?? '');
      // Not a hard link: it would change the layer under another build that reads it.
      await symlink(layer.path, to);
    }
    await writeFile(join(folder, 'config.json'), documentOf(layers, config));
    const manifest = [{ Config: 'config.json', RepoTags: [image], Layers: names }];
    await writeFile(join(folder, 'manifest.json'), JSON.stringify(manifest));
    const files = ['manifest.json', 'config.json', ...names];
    await run(['tar', '-C', folder, '--dereference', '-cf', join(folder, 'image.tar'), ...files], signal);
    await rename(join(folder, 'image.tar'), path);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function documentOf(layers: readonly Layer[], config: ImageConfig): string {
  const created = '1970-01-01T00:00:00Z';
  return JSON.stringify({
    architecture: 'amd64',
    os: 'linux',
    created,
    config: { ...config, Labels: { 'org.opencontainers.image.licenses': 'Apache-2.0' } },
    rootfs: { type: 'layers', diff_ids: layers.map((layer) => `sha256:${layer.sha256}`) },
    history: layers.map(() => ({ created, created_by: 'lathe images' })),
  });
}
