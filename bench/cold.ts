/**
 * From nothing to a result: a Workspace (Ephemeral) and a command Turn applied in one request each → its result in
 * `status`, as a watch sees it; against a bare pod of the same image, created → Ready, seen by the same kind of watch.
 */
import { CoreV1Api, CustomObjectsApi, KubeConfig, Watch } from '@kubernetes/client-node';
import { kubectlOf } from '../test/installation/kubectl.ts';
import type { Bench } from './bench.ts';
import { measure } from './measure.ts';

const TEAM = 'lathe-bench-cold';
const GROUP = { group: 'lathe.dev', version: 'v1alpha1', namespace: TEAM } as const;
type Seen = Readonly<{
  metadata: { name: string };
  status?: { phase?: string; conditions?: { type: string; status: string }[] };
}>;

export const coldBench: Bench = async ({ installation, samples = 20, onProgress }, signal) => {
  const { cluster } = installation;
  const kubectl = kubectlOf(cluster);
  await kubectl.run(
    ['apply', '-f', '-'],
    { input: JSON.stringify({ apiVersion: 'v1', kind: 'Namespace', metadata: { name: TEAM } }) },
    signal,
  );
  const kubeConfig = new KubeConfig();
  kubeConfig.loadFromFile(cluster.kubeconfig);
  if (cluster.context !== undefined) kubeConfig.setCurrentContext(cluster.context);
  const core = kubeConfig.makeApiClient(CoreV1Api);
  const custom = kubeConfig.makeApiClient(CustomObjectsApi);
  const image = await sandboxImage(kubectl, signal);
  const until = (path: string, holds: (o: Seen) => boolean) => watchUntil(new Watch(kubeConfig), path, holds, signal);
  const remove = (...args: string[]) =>
    kubectl.run(['-n', TEAM, 'delete', ...args, '--ignore-not-found', '--wait'], {}, signal);

  try {
    return await measure(
      {
        subject: {
          name: 'applied → result in status',
          // Its pod too: it would hold the room that the next one needs.
          before: async () => {
            await remove('workspace', '--all');
            await kubectl.run(
              ['-n', TEAM, 'wait', '--for=delete', 'pod', '-l', 'app.kubernetes.io/managed-by=lathe', '--timeout=30s'],
              {},
              signal,
            );
          },
          sample: async (i) => {
            const name = `cold${i < 0 ? `-w${-i}` : `-${i}`}`;
            const finished = until(
              `/apis/lathe.dev/v1alpha1/namespaces/${TEAM}/turns`,
              (o) => o.metadata.name === name && holds(o, 'Finished'),
            );
            await custom.createNamespacedCustomObject({
              ...GROUP,
              plural: 'workspaces',
              body: object('Workspace', name, {
                volume: { mode: 'Ephemeral' },
                environment: { resources: { cpu: '500m', memory: '256Mi' } },
              }),
            });
            await custom.createNamespacedCustomObject({
              ...GROUP,
              plural: 'turns',
              body: object('Turn', name, { workspace: name, command: 'true' }),
            });
            const turn = await finished;
            if (turn.status?.phase !== 'Completed')
              throw new Error(
                `turn ${name} ended ${turn.status?.phase}; look with: kubectl -n ${TEAM} describe turn ${name}`,
              );
          },
        },
        reference: {
          name: 'bare pod, created → Ready',
          before: async () => void (await remove('pod', 'bare', '--grace-period=0', '--force')),
          sample: async () => {
            const ready = until(
              `/api/v1/namespaces/${TEAM}/pods`,
              (o) => o.metadata.name === 'bare' && holds(o, 'Ready'),
            );
            await core.createNamespacedPod({ namespace: TEAM, body: barePod(image) });
            await ready;
          },
        },
        samples,
        warmUp: 2,
        onProgress: (done, of) => onProgress(`${done} of ${of} samples`),
      },
      signal,
    );
  } finally {
    await kubectl.run(['delete', 'namespace', TEAM, '--ignore-not-found', '--wait=false']);
  }
};

function holds(o: Seen, condition: string): boolean {
  return o.status?.conditions?.some((c) => c.type === condition && c.status === 'True') ?? false;
}

function object(kind: string, name: string, spec: object): object {
  return { apiVersion: 'lathe.dev/v1alpha1', kind, metadata: { name, namespace: TEAM }, spec };
}

/** No volume, nothing injected: the least that a pod can be. */
function barePod(image: string) {
  return {
    metadata: { name: 'bare' },
    spec: {
      automountServiceAccountToken: false,
      enableServiceLinks: false,
      terminationGracePeriodSeconds: 0,
      containers: [{ name: 'bare', image, imagePullPolicy: 'IfNotPresent', command: ['sleep', 'infinity'] }],
    },
  };
}

async function sandboxImage(kubectl: ReturnType<typeof kubectlOf>, signal: AbortSignal): Promise<string> {
  const classes = await kubectl.json<{
    items: { metadata: { annotations?: Record<string, string> }; spec: { images?: { default?: string } } }[];
  }>(['get', 'workspaceclasses'], signal);
  const image = classes.items.find((c) => c.metadata.annotations?.['lathe.dev/is-default-class'] === 'true')?.spec
    .images?.default;
  if (image === undefined)
    throw new Error('no default WorkspaceClass names an image; install the chart with its default class');
  return image;
}

/** The first object on the watch for which `holds`; the watch is open before this returns control to its caller's next await. */
async function watchUntil(watch: Watch, path: string, holds: (o: Seen) => boolean, signal: AbortSignal): Promise<Seen> {
  const deadline = AbortSignal.any([signal, AbortSignal.timeout(120_000)]);
  return await new Promise<Seen>((resolve, reject) => {
    let controller: AbortController | undefined;
    const finish = (settle: () => void) => {
      settle();
      controller?.abort();
    };
    deadline.addEventListener('abort', () => finish(() => reject(deadline.reason)), { once: true });
    watch
      .watch(
        path,
        {},
        (_phase, o: Seen) => {
          if (holds(o)) finish(() => resolve(o));
        },
        (error) => reject(error ?? new Error(`the watch of ${path} ended early`)),
      )
      .then((c) => (controller = c), reject);
  });
}
