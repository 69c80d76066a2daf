/** A cluster with Lathe in it: what `npm run demo`, the end-to-end tests and the benches start from. */
import { stringify } from 'yaml';
import { buildImages } from '../../images/build.ts';
import { clusterUp, loadImages, type Cluster } from '../cluster/cluster.ts';
import { helmOf, kubectlOf } from './kubectl.ts';

export const NAMESPACE = 'lathe-system';

export type Installation = Readonly<{ cluster: Cluster; namespace: string; seconds: Readonly<Record<string, number>> }>;
export type InstallOptions = Readonly<{
  name?: string;
  context?: string;
  /** Helm values on top of the images'. */
  values?: Readonly<Record<string, unknown>>;
  /** A registry that a cluster of somebody else's can pull from; the images are pushed there. */
  push?: string;
  onProgress?: (line: string) => void;
}>;

/** Idempotent: what is there already is kept, what changed is upgraded. */
export async function install(options: InstallOptions, signal: AbortSignal): Promise<Installation> {
  const say = options.onProgress ?? (() => undefined);
  const seconds: Record<string, number> = {};
  const step = async <T>(name: string, work: () => Promise<T>): Promise<T> => {
    signal.throwIfAborted();
    const began = performance.now();
    const result = await work();
    seconds[name] = Math.round((performance.now() - began) / 100) / 10;
    say(`${name}: ${seconds[name]} s`);
    return result;
  };

  const cluster = await step('cluster', () =>
    clusterUp(
      {
        ...(options.name ? { name: options.name } : {}),
        ...(options.context ? { context: options.context } : {}),
        onProgress: say,
      },
      signal,
    ),
  );
  const images = await step('images', () =>
    buildImages({ onProgress: say, ...(options.push ? { push: options.push } : {}) }, signal),
  );
  if (options.push === undefined) {
    await step('load', () => loadImages(cluster, images, signal));
  }
  const values = {
    ...options.values,
    images: Object.fromEntries(images.map((image) => [image.name, `${image.repository}:${image.tag}`])),
  };
  await step('install', async () => {
    await helmOf(cluster).run(
      [
        'upgrade',
        '--install',
        'lathe',
        'charts/lathe',
        '--namespace',
        NAMESPACE,
        '--create-namespace',
        '--values',
        '-',
        '--wait',
        '--timeout',
        '5m',
      ],
      { input: stringify(values) },
      signal,
    );
  });
  return { cluster, namespace: NAMESPACE, seconds };
}

/** Everything of Lathe, the custom resources first, so that nothing waits for an operator that is gone. */
export async function uninstall(cluster: Cluster, signal: AbortSignal): Promise<void> {
  await helmOf(cluster).run(
    ['uninstall', 'lathe', '--namespace', NAMESPACE, '--ignore-not-found', '--wait'],
    {},
    signal,
  );
  await kubectlOf(cluster).run(['delete', 'namespace', NAMESPACE, '--ignore-not-found'], {}, signal);
}
