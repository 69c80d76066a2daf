/**
 * The turn controller's API from outside the cluster, with the client certificate that the installation keeps for
 * programs it trusts. Where the pod's address can be reached it is dialled directly, else through a port-forward.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import { connect } from 'node:net';
import { credentials } from '@grpc/grpc-js';
import { TurnsServiceClient } from '../../proto/gen/lathe/turns/v1/turns.ts';
import type { Cluster } from '../cluster/cluster.ts';
import { kubectlOf } from './kubectl.ts';

export type TurnsClient = AsyncDisposable & Readonly<{ client: TurnsServiceClient; direct: boolean }>;

const PORT = 8444;

/** @param direct false: always by port-forward, as somebody with nothing but a kubeconfig does */
export async function connectTurns(
  cluster: Cluster,
  options: Readonly<{ namespace: string; direct?: boolean }>,
  signal: AbortSignal,
): Promise<TurnsClient> {
  const kubectl = kubectlOf(cluster);
  const secret = await kubectl.json<{ data: Record<string, string> }>(
    ['-n', options.namespace, 'get', 'secret', 'lathe-client-tls'],
    signal,
  );
  const pem = (key: string) => Buffer.from(secret.data[key] ?? '', 'base64');
  const tls = credentials.createSsl(pem('ca.crt'), pem('tls.key'), pem('tls.crt'));
  const tlsName = `lathe-turns.${options.namespace}.svc`;
  const dial = (address: string) =>
    new TurnsServiceClient(address, tls, {
      'grpc.ssl_target_name_override': tlsName,
      'grpc.default_authority': tlsName,
      'grpc.keepalive_time_ms': 5_000,
    });

  const podIp = options.direct === false ? undefined : await turnsPodAddress(kubectl, options.namespace, signal);
  if (podIp !== undefined && (await reachable(podIp, PORT))) {
    const client = dial(`${podIp}:${PORT}`);
    return { client, direct: true, [Symbol.asyncDispose]: async () => client.close() };
  }
  const forward = await portForward(cluster, options.namespace, signal);
  const client = dial(`127.0.0.1:${forward.port}`);
  return {
    client,
    direct: false,
    [Symbol.asyncDispose]: async () => {
      client.close();
      forward.process.kill('SIGTERM');
    },
  };
}

async function turnsPodAddress(
  kubectl: ReturnType<typeof kubectlOf>,
  namespace: string,
  signal: AbortSignal,
): Promise<string | undefined> {
  const pods = await kubectl.json<{ items: { status: { phase: string; podIP?: string } }[] }>(
    ['-n', namespace, 'get', 'pods', '-l', 'app.kubernetes.io/component=turns'],
    signal,
  );
  return pods.items.find((pod) => pod.status.phase === 'Running')?.status.podIP;
}

function reachable(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, timeout: 1_000 });
    const answer = (yes: boolean) => {
      socket.destroy();
      resolve(yes);
    };
    socket
      .once('connect', () => answer(true))
      .once('error', () => answer(false))
      .once('timeout', () => answer(false));
  });
}

/** A local port that kubectl chose; it says so in its first line. */
function portForward(
  cluster: Cluster,
  namespace: string,
  signal: AbortSignal,
): Promise<{ process: ChildProcess; port: number }> {
  return new Promise((resolve, reject) => {
    const context = cluster.context === undefined ? [] : ['--context', cluster.context];
    const child = spawn(
      cluster.kubectl,
      [
        '--kubeconfig',
        cluster.kubeconfig,
        ...context,
        '-n',
        namespace,
        'port-forward',
        'deployment/lathe-turns',
        `:${PORT}`,
      ],
      { stdio: ['ignore', 'pipe', 'pipe'], signal },
    );
    let seen = '';
    const look = (text: string) => {
      seen = (seen + text).slice(-4_096);
      const port = /127\.0\.0\.1:(\d+) ->/.exec(seen)?.[1];
      if (port !== undefined) resolve({ process: child, port: Number(port) });
    };
    child.stdout?.setEncoding('utf8').on('data', look);
    child.stderr?.setEncoding('utf8').on('data', look);
    child.once('error', reject);
    child.once('exit', (code) =>
      reject(new Error(`kubectl port-forward to the turn controller ended with ${code}: ${seen.trim()}`)),
    );
  });
}
