/** From a kubeconfig to an undici agent and headers: for the operator's client and for the SDK alike. */
import { readFile } from 'node:fs/promises';
import type { KubeConfig } from '@kubernetes/client-node';
import { Agent, type Dispatcher } from 'undici';

const HEADERS_MS = 30_000;
/** In-cluster tokens are renewed on disk by the kubelet. */
const TOKEN_AGE_MS = 60_000;

/** One agent for all calls. Each watch holds a connection; the rest share a few. */
export async function agentOfKubeConfig(kubeConfig: KubeConfig): Promise<Dispatcher> {
  const tls: { ca?: Buffer; cert?: Buffer; key?: Buffer; rejectUnauthorized?: boolean } = {};
  const cluster = kubeConfig.getCurrentCluster();
  const user = kubeConfig.getCurrentUser();
  const pick = async (data: string | undefined, file: string | undefined) =>
    data ? Buffer.from(data, 'base64') : file ? await readFile(file) : undefined;
  const ca = await pick(cluster?.caData, cluster?.caFile);
  const cert = await pick(user?.certData, user?.certFile);
  const key = await pick(user?.keyData, user?.keyFile);
  if (ca !== undefined) tls.ca = ca;
  if (cert !== undefined) tls.cert = cert;
  if (key !== undefined) tls.key = key;
  if (cluster?.skipTLSVerify === true) tls.rejectUnauthorized = false;
  return new Agent({
    connect: { ...tls, timeout: 10_000, keepAlive: true, keepAliveInitialDelay: 15_000 },
    connections: 64,
    pipelining: 1,
    headersTimeout: HEADERS_MS,
    bodyTimeout: 0,
  });
}

/** Whatever the kubeconfig says of tokens (a file, a program, in-cluster), asked again now and then. */
export function headersOfKubeConfig(kubeConfig: KubeConfig): () => Promise<Record<string, string>> {
  let cached: { headers: Record<string, string>; at: number } | undefined;
  return async () => {
    if (cached !== undefined && performance.now() - cached.at < TOKEN_AGE_MS) return cached.headers;
    const options: { headers: Record<string, string> } = { headers: {} };
    await kubeConfig.applyToHTTPSOptions(options);
    const authorization = Object.entries(options.headers).find(([name]) => name.toLowerCase() === 'authorization')?.[1];
    cached = { headers: authorization === undefined ? {} : { authorization }, at: performance.now() };
    return cached.headers;
  };
}
