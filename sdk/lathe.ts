/** The way in: with the cluster's own kubeconfig, or directly with a token. */
import { KubeConfig } from '@kubernetes/client-node';
import { Agent } from 'undici';
import { agentOfKubeConfig, headersOfKubeConfig } from '../proto/kubeconfig.ts';
import { API_VERSION } from '../proto/live/types.ts';
import { ConflictError, LatheError, NotFoundError } from './errors.ts';
import { workspaceName } from './names.ts';
import { createTransport, type Transport } from './transport.ts';
import { Workspace } from './workspace.ts';

export type LatheOptions = Readonly<
  | {
      /** Path of a kubeconfig; absent: KUBECONFIG, ~/.kube/config, or the pod's own account. */
      kubeconfig?: string;
      context?: string;
      namespace?: string;
    }
  | {
      /** Of the direct listener (Service lathe-api, port 9443). */
      url: string;
      /** Of audience `lathe.dev`; a function is asked before each request. */
      token: string | (() => string | Promise<string>);
      /** PEM of the installation's authority. */
      ca?: string | Buffer;
      /** What the certificate is for, where the URL names an address. */
      serverName?: string;
      namespace?: string;
    }
>;
export type WorkspaceOptions = Readonly<{
  /** Any text; what Kubernetes does not take as a name is turned into one, and kept as `displayName`. */
  name: string;
  namespace?: string;
  /** Of a workspace that is made. */
  class?: string;
  spec?: Readonly<Record<string, unknown>>;
  /** False: it is neither made nor waited for; the first request says if it is not there. */
  create?: boolean;
  signal?: AbortSignal;
}>;
export type WorkspaceObject = Readonly<{
  metadata: Readonly<{ name: string; namespace: string; uid: string }>;
  spec: Readonly<Record<string, unknown>>;
  status?: Readonly<Record<string, unknown>> &
    Readonly<{ conditions?: readonly Readonly<{ type: string; status: string; reason?: string; message?: string }>[] }>;
}>;
export type Lathe = AsyncDisposable &
  Readonly<{
    namespace: string;
    /** Gets it, or makes it and waits until its files can be used. @throws LatheError */
    workspace(options: WorkspaceOptions): Promise<Workspace>;
    /** The object, as kubectl shows it. Not by the direct way, which knows files only. */
    object(name: string, namespace?: string, signal?: AbortSignal): Promise<WorkspaceObject>;
    transport: Transport;
  }>;

const POLL_MS = 200;
/** How long a new workspace, its seed included, is waited for. */
const READY_MS = 600_000;

export function createLathe(options: LatheOptions = {}): Lathe {
  const direct = 'url' in options;
  const { transport, namespace } = direct ? directly(options) : byKubeConfig(options);

  const objects = (inNamespace: string) => `/apis/lathe.dev/v1alpha1/namespaces/${inNamespace}/workspaces`;
  const lathe: Lathe = {
    namespace,
    transport,
    object: async (name, inNamespace = namespace, signal) => {
      const { body } = await transport.ask('GET', `${objects(inNamespace)}/${name}`, { signal });
      return JSON.parse(body.toString('utf8')) as WorkspaceObject;
    },
    workspace: async ({ name: displayName, namespace: inNamespace = namespace, create = true, signal, ...rest }) => {
      const name = workspaceName(displayName);
      const workspace = new Workspace(
        transport,
        `/apis/${API_VERSION}/namespaces/${inNamespace}/workspaces/${name}`,
        name,
        inNamespace,
      );
      // Whether it is there is said by the first request.
      if (!create) return workspace;
      if (direct) {
        await workspace.versions({ limit: 1, signal });
        return workspace;
      }
      const found = await lathe.object(name, inNamespace, signal).catch((error: unknown) => {
        if (error instanceof NotFoundError) return undefined;
        throw error;
      });
      if (found === undefined) {
        const spec = {
          ...(name === displayName ? {} : { displayName }),
          ...(rest.class === undefined ? {} : { class: rest.class }),
          ...rest.spec,
        };
        const body = JSON.stringify({ apiVersion: 'lathe.dev/v1alpha1', kind: 'Workspace', metadata: { name }, spec });
        await transport
          .ask('POST', objects(inNamespace), { body, headers: { 'content-type': 'application/json' }, signal })
          .catch((error: unknown) => {
            // Somebody was quicker; what they made holds.
            if (!(error instanceof ConflictError)) throw error;
          });
      }
      await ready(name, inNamespace, signal);
      return workspace;
    },
    [Symbol.asyncDispose]: () => transport[Symbol.asyncDispose](),
  };
  return lathe;

  async function ready(name: string, inNamespace: string, signal: AbortSignal | undefined): Promise<void> {
    const until = performance.now() + READY_MS;
    for (;;) {
      const { status } = await lathe.object(name, inNamespace, signal);
      const condition = status?.conditions?.find(({ type }) => type === 'Ready');
      if (condition?.status === 'True') return;
      const stalled = status?.conditions?.find(({ type }) => type === 'Stalled');
      if (stalled?.status === 'True' || performance.now() > until)
        throw new LatheError(
          stalled?.reason ?? 'Unknown',
          0,
          `workspace ${inNamespace}/${name} is not ready: ${stalled?.message ?? condition?.message ?? 'no condition says why'}`,
        );
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      signal?.throwIfAborted();
    }
  }
}

function byKubeConfig(options: Extract<LatheOptions, { context?: string }>): {
  transport: Transport;
  namespace: string;
} {
  const config = new KubeConfig();
  if (options.kubeconfig === undefined) config.loadFromDefault();
  else config.loadFromFile(options.kubeconfig);
  if (options.context !== undefined) config.setCurrentContext(options.context);
  const cluster = config.getCurrentCluster();
  if (cluster === null)
    throw new LatheError('BadRequest', 0, 'the kubeconfig has no current cluster; name one with a context');
  let agent: ReturnType<typeof agentOfKubeConfig> | undefined;
  const transport = createTransport({
    server: cluster.server,
    agent: () => (agent ??= agentOfKubeConfig(config)),
    headers: headersOfKubeConfig(config),
  });
  const context = config.getContextObject(config.getCurrentContext());
  return { transport, namespace: options.namespace ?? context?.namespace ?? 'default' };
}

function directly(options: Extract<LatheOptions, { url: string }>): { transport: Transport; namespace: string } {
  const { url, token, ca, serverName, namespace = 'default' } = options;
  const agent = new Agent({
    connect: {
      timeout: 10_000,
      ...(ca === undefined ? {} : { ca }),
      ...(serverName === undefined ? {} : { servername: serverName }),
    },
    connections: 16,
  });
  const transport = createTransport({
    server: url,
    agent: () => Promise.resolve(agent),
    headers: async () => ({ authorization: `Bearer ${typeof token === 'string' ? token : await token()}` }),
  });
  return { transport, namespace };
}
