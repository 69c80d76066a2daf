/** The cluster where a Docker engine runs: kind, one node, the configuration beside this file. */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { clientTools, type Cluster, type Say } from './cluster.ts';
import { cacheRoot } from './layout.ts';
import { run } from './run.ts';

export async function dockerAnswers(signal: AbortSignal): Promise<boolean> {
  return await run(
    ['docker', 'info', '--format', '{{.ServerVersion}}'],
    AbortSignal.any([signal, AbortSignal.timeout(5_000)]),
  ).then(
    (version) => version.trim() !== '',
    () => false,
  );
}

export async function kindUp(name: string, say: Say, signal: AbortSignal): Promise<Cluster> {
  const tools = await clientTools(say, signal);
  const folder = join(cacheRoot(), 'kind');
  await mkdir(folder, { recursive: true });
  const kubeconfig = join(folder, `${name}.kubeconfig`);
  const there = (await kind(['get', 'clusters'], signal)).split('\n').includes(name);
  if (!there) {
    say(`kind: creating cluster ${name}`);
    const config = fileURLToPath(new URL('kind.yaml', import.meta.url));
    await kind(
      ['create', 'cluster', '--name', name, '--config', config, '--kubeconfig', kubeconfig, '--wait', '120s'],
      signal,
    );
  } else await kind(['export', 'kubeconfig', '--name', name, '--kubeconfig', kubeconfig], signal);
  return { name, kind: 'kind', kubeconfig, ...tools };
}

export async function kindDown(name: string, signal: AbortSignal): Promise<void> {
  await kind(['delete', 'cluster', '--name', name], signal);
}

export async function kindLoad(
  name: string,
  images: readonly Readonly<{ archive: string }>[],
  signal: AbortSignal,
): Promise<void> {
  for (const { archive } of images) await kind(['load', 'image-archive', archive, '--name', name], signal);
}

async function kind(args: readonly string[], signal: AbortSignal): Promise<string> {
  return await run(['kind', ...args], signal).catch((cause: unknown) => {
    throw new Error(
      'a Docker engine runs here, and kind does not; install kind (go install sigs.k8s.io/kind@latest), or pass --context NAME',
      { cause },
    );
  });
}
