/**
 * A real cluster to try things on: kind where a Docker engine runs, somebody's context where one is named, else built
 * and started here (docs/guides/test-cluster.md). Several live side by side by name; a second `up` takes a second.
 */
import { join } from 'node:path';
import { binaries } from './binaries.ts';
import { builtDown, builtImages, builtStatus, builtUp } from './built.ts';
import { contextCluster } from './context.ts';
import { dockerAnswers, kindDown, kindLoad, kindUp } from './kind.ts';
import { cacheRoot } from './layout.ts';

export type Cluster = Readonly<{
  name: string;
  kind: 'built' | 'kind' | 'context';
  /** Path of a file. */
  kubeconfig: string;
  /** Set where the file has several. */
  context?: string;
  /** Paths of programs. */
  kubectl: string;
  helm: string;
  nodeAddress?: string;
  /** The API server's audit log (writes only), where it can be read. */
  auditLog?: string;
}>;
export type Say = (line: string) => void;
export type ClusterStatus = Readonly<{ name: string; running: boolean; processes: Readonly<Record<string, boolean>> }>;

export const DEFAULT_NAME = 'lathe';
const silent: Say = () => undefined;

/** Makes it, or finds it running, or repairs it. Returns once pods can be scheduled and volumes made. */
export async function clusterUp(
  options: Readonly<{ name?: string; context?: string; onProgress?: Say }>,
  signal: AbortSignal,
): Promise<Cluster> {
  const say = options.onProgress ?? silent;
  const name = options.name ?? DEFAULT_NAME;
  if (options.context !== undefined) return await contextCluster(options.context, say, signal);
  if (await dockerAnswers(signal)) return await kindUp(name, say, signal);
  return await builtUp(name, say, signal);
}

/** Removes what `clusterUp` made; the cache of built programs stays. A cluster that is not there is no error. */
export async function clusterDown(
  options: Readonly<{ name?: string; onProgress?: Say }>,
  signal: AbortSignal,
): Promise<void> {
  const name = options.name ?? DEFAULT_NAME;
  if (await dockerAnswers(signal)) await kindDown(name, signal);
  await builtDown(name, options.onProgress ?? silent, signal);
}

export async function clusterStatus(options: Readonly<{ name?: string }>, signal: AbortSignal): Promise<ClusterStatus> {
  return await builtStatus(options.name ?? DEFAULT_NAME, signal);
}

/** Makes images known to the cluster's node. Archives that were loaded before are skipped by their names. */
export async function loadImages(
  cluster: Cluster,
  images: readonly Readonly<{ image: string; archive: string }>[],
  signal: AbortSignal,
): Promise<void> {
  if (cluster.kind === 'built') return await builtImages(cluster.name, images, signal);
  if (cluster.kind === 'kind') return await kindLoad(cluster.name, images, signal);
  throw new Error(
    `images can't be loaded into the cluster of context ${cluster.context}: push them to a registry it can pull from (npm run images -- --push REGISTRY)`,
  );
}

/** Programs for clusters that are not built here. */
export async function clientTools(say: Say, signal: AbortSignal): Promise<Readonly<{ kubectl: string; helm: string }>> {
  const found = await binaries(say, signal, 'helm');
  return { kubectl: 'kubectl', helm: found['helm'] ?? join(cacheRoot(), 'helm') };
}
