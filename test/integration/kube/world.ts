/** The real API server, for tests of the client: a namespace of its own, ConfigMaps to play with. */
import { randomBytes } from 'node:crypto';
import { KubeConfig } from '@kubernetes/client-node';
import { afterAll, beforeAll } from 'vitest';
import { createKubeClient, type KubeClient } from '../../../operator/kube/client.ts';
import type { KubeObject, Resource } from '../../../operator/kube/types.ts';
import { clusterUp } from '../../cluster/cluster.ts';
import { startFaultProxy, type FaultProxy } from './fault-proxy.ts';

export type ConfigMap = KubeObject & Readonly<{ data?: Readonly<Record<string, string>> }>;
export const CONFIG_MAPS: Resource<ConfigMap> = {
  group: '',
  version: 'v1',
  plural: 'configmaps',
  kind: 'ConfigMap',
  namespaced: true,
};
export const NAMESPACES: Resource = {
  group: '',
  version: 'v1',
  plural: 'namespaces',
  kind: 'Namespace',
  namespaced: false,
};
export type KubeWorld = {
  client: KubeClient;
  throughProxy: KubeClient;
  proxy: FaultProxy;
  namespace: string;
  put(name: string, value: string): Promise<void>;
  remove(name: string): Promise<void>;
};

export function useApiServer(): KubeWorld {
  const world = {} as KubeWorld;
  beforeAll(async () => {
    const kubeconfig =
      process.env['LATHE_TEST_KUBECONFIG'] ??
      (await clusterUp({ name: 'test' }, AbortSignal.timeout(1_200_000))).kubeconfig;
    const kubeConfig = new KubeConfig();
    kubeConfig.loadFromFile(kubeconfig);
    const context = process.env['LATHE_TEST_CONTEXT'];
    if (context !== undefined) kubeConfig.setCurrentContext(context);
    world.client = createKubeClient({ kubeConfig, fieldManager: 'lathe-test' });
    world.proxy = await startFaultProxy(kubeConfig);
    const proxied = new KubeConfig();
    proxied.loadFromClusterAndUser(
      {
        name: 'proxy',
        server: world.proxy.url,
        caData: Buffer.from(world.proxy.ca).toString('base64'),
        skipTLSVerify: false,
      },
      { name: 'nobody' },
    );
    world.throughProxy = createKubeClient({ kubeConfig: proxied, fieldManager: 'lathe-test' });
    world.namespace = `kube-${randomBytes(4).toString('hex')}`;
    await world.client.create(NAMESPACES, { apiVersion: 'v1', kind: 'Namespace', metadata: { name: world.namespace } });
    world.put = async (name, value) => {
      await world.client.apply(CONFIG_MAPS, {
        apiVersion: 'v1',
        kind: 'ConfigMap',
        metadata: { name, namespace: world.namespace },
        data: { value },
      });
    };
    world.remove = (name) => world.client.delete(CONFIG_MAPS, { namespace: world.namespace, name });
  });
  afterAll(async () => {
    await world.client?.delete(NAMESPACES, { name: world.namespace }).catch(() => undefined);
    await world.throughProxy?.[Symbol.asyncDispose]();
    await world.proxy?.[Symbol.asyncDispose]();
    await world.client?.[Symbol.asyncDispose]();
  });
  return world;
}
