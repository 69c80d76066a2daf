/** The sandbox pod (ARCHITECTURE 3). Pure: the same inputs give the same pod. */
import { createHash } from 'node:crypto';
import type { V1Pod, V1SecurityContext } from '@kubernetes/client-node';
import { parseDuration, parseQuantity } from '../../crds/quantity.ts';
import type { ClassSpec, EffectiveSpec } from '../../crds/types.ts';
import { LABELS, MANAGER, ownedBy, SANDBOXES, type Sandbox } from './resources.ts';

export type PodInput = Readonly<{
  sandbox: Sandbox;
  sandboxId: string;
  workspaceId: string;
  seq: number;
  effective: EffectiveSpec;
  classSpec: ClassSpec;
  claimName: string | undefined;
  runtimeImage: string;
  turns: Readonly<{ clusterIp: string; host: string; port: number; ca: string }>;
}>;

/** Ours, both outside of what images use. The group is shared: the guest may connect to the broker's socket. */
export const BROKER_UID = 65_531;
export const WORK_UID = 65_532;
const GROUP = 65_532;
export const SERVICE_ACCOUNT = 'lathe-sandbox';
/** Beyond a sandbox's life and its longest command: a leak stop that needs no operator. */
const DEADLINE_MARGIN_SECONDS = 40 * 60;
const TMP_SHARE = 0.25;

/** `<workspace>-<hash>`: short, and the same for the same sandbox and number. */
export function podName(sandbox: Readonly<{ metadata: Readonly<{ name: string; uid: string }> }>, seq: number): string {
  const hash = createHash('sha256').update(`${sandbox.metadata.uid}/${seq}`).digest('hex').slice(0, 10);
  return `${sandbox.metadata.name.slice(0, 40).replace(/-+$/, '')}-${hash}`;
}

/** The loader is named so that any image will do: musl, or no libc at all. */
export const nodeCommand = (root: string, script: string): string[] => [
  `${root}/bin/init`,
  '--',
  `${root}/lib/ld-linux-x86-64.so.2`,
  '--library-path',
  `${root}/lib`,
  `${root}/bin/node`,
  '--max-old-space-size=128',
  '--max-semi-space-size=1',
  `${root}/${script}`,
];

export function buildPod(input: PodInput): V1Pod & { apiVersion: string; kind: string; metadata: { name: string } } {
  const { sandbox, effective, classSpec } = input;
  const { name, namespace } = sandbox.metadata;
  const locked: V1SecurityContext = {
    allowPrivilegeEscalation: false,
    readOnlyRootFilesystem: true,
    runAsNonRoot: true,
    capabilities: { drop: ['ALL'] },
    seccompProfile: { type: 'RuntimeDefault' },
  };
  const memory = parseQuantity(effective.resources.memory) ?? 0;
  const limits = {
    cpu: effective.resources.cpu,
    memory: effective.resources.memory,
    'ephemeral-storage': effective.resources.disk,
  };
  // The broker is ours and idles; at its start a tight limit would cost every sandbox a second.
  const brokerRequests = { cpu: '20m', memory: '96Mi', 'ephemeral-storage': '256Mi' };
  const brokerLimits = { cpu: '1', memory: '192Mi', 'ephemeral-storage': '256Mi' };
  const persistent = input.claimName !== undefined;
  const pullPolicy = 'IfNotPresent';
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name: podName(sandbox, input.seq),
      namespace: namespace ?? '',
      labels: {
        ...classSpec.podLabels,
        [LABELS.managedBy]: MANAGER,
        [LABELS.workspace]: name,
        [LABELS.workspaceId]: input.workspaceId,
        [LABELS.class]: classLabel(effective.class),
        'app.kubernetes.io/name': 'lathe-sandbox',
      },
      ownerReferences: ownedBy(SANDBOXES, sandbox),
    },
    spec: {
      serviceAccountName: SERVICE_ACCOUNT,
      automountServiceAccountToken: false,
      enableServiceLinks: false,
      restartPolicy: 'Always',
      terminationGracePeriodSeconds: 5,
      activeDeadlineSeconds:
        Math.round((parseDuration(effective.sandbox.maxLifetime) ?? 0) / 1_000) + DEADLINE_MARGIN_SECONDS,
      dnsPolicy: 'Default',
      hostAliases: [{ ip: input.turns.clusterIp, hostnames: [input.turns.host] }],
      securityContext: {
        runAsNonRoot: true,
        runAsUser: WORK_UID,
        runAsGroup: GROUP,
        fsGroup: GROUP,
        fsGroupChangePolicy: 'OnRootMismatch',
        seccompProfile: { type: 'RuntimeDefault' },
      },
      ...(classSpec.userNamespaces === 'Required' ? { hostUsers: false } : {}),
      ...(classSpec.runtimeClassName === undefined ? {} : { runtimeClassName: classSpec.runtimeClassName }),
      ...(classSpec.nodeSelector === undefined ? {} : { nodeSelector: classSpec.nodeSelector }),
      ...(classSpec.tolerations === undefined ? {} : { tolerations: [...classSpec.tolerations] }),
      ...(classSpec.priorityClassName === undefined ? {} : { priorityClassName: classSpec.priorityClassName }),
      containers: [
        {
          name: 'broker',
          image: input.runtimeImage,
          imagePullPolicy: pullPolicy,
          command: nodeCommand('', 'broker.js'),
          securityContext: { ...locked, runAsUser: BROKER_UID, runAsGroup: GROUP },
          resources: { requests: brokerRequests, limits: brokerLimits },
          env: [
            { name: 'LATHE_SANDBOX', value: input.sandboxId },
            { name: 'LATHE_STATE_DIR', value: '/var/lib/lathe' },
            { name: 'LATHE_SOCKET', value: '/run/lathe/guest.sock' },
            { name: 'LATHE_TOKEN_FILE', value: '/var/run/secrets/lathe.dev/token' },
            { name: 'LATHE_TURNS_ADDRESS', value: `${input.turns.host}:${input.turns.port}` },
            { name: 'LATHE_TURNS_TLS_NAME', value: input.turns.host },
            { name: 'LATHE_TURNS_CA', value: input.turns.ca },
          ],
          volumeMounts: [
            { name: 'token', mountPath: '/var/run/secrets/lathe.dev', readOnly: true },
            { name: 'state', mountPath: '/var/lib/lathe' },
            { name: 'socket', mountPath: '/run/lathe' },
          ],
        },
        {
          name: 'work',
          image: effective.image,
          imagePullPolicy: pullPolicy,
          command: nodeCommand('/lathe', 'guest.js'),
          workingDir: '/workspace',
          securityContext: { ...locked, runAsUser: WORK_UID, runAsGroup: GROUP },
          resources: { requests: limits, limits },
          env: [
            { name: 'LATHE_SOCKET', value: '/run/lathe/guest.sock' },
            { name: 'LATHE_WORKSPACE_DIR', value: '/workspace' },
            { name: 'HOME', value: '/home/lathe' },
          ],
          volumeMounts: [
            { name: 'runtime', mountPath: '/lathe', readOnly: true },
            { name: 'socket', mountPath: '/run/lathe', readOnly: true },
            { name: 'workspace', mountPath: '/workspace', ...(persistent ? { subPath: 'tree' } : {}) },
            {
              name: persistent ? 'workspace' : 'home',
              mountPath: '/home/lathe',
              ...(persistent ? { subPath: 'home' } : {}),
            },
            { name: 'tmp', mountPath: '/tmp' },
          ],
        },
      ],
      volumes: [
        {
          name: 'token',
          projected: {
            defaultMode: 0o440,
            sources: [{ serviceAccountToken: { audience: 'lathe.dev', expirationSeconds: 600, path: 'token' } }],
          },
        },
        { name: 'state', emptyDir: { sizeLimit: '128Mi' } },
        { name: 'socket', emptyDir: { sizeLimit: '1Mi' } },
        { name: 'runtime', image: { reference: input.runtimeImage, pullPolicy } },
        { name: 'tmp', emptyDir: { medium: 'Memory', sizeLimit: String(Math.max(1, Math.floor(memory * TMP_SHARE))) } },
        persistent
          ? { name: 'workspace', persistentVolumeClaim: { claimName: input.claimName ?? '' } }
          : { name: 'workspace', emptyDir: { sizeLimit: effective.volume.size } },
        ...(persistent ? [] : [{ name: 'home', emptyDir: { sizeLimit: effective.resources.disk } }]),
      ],
    },
  };
}

/** Names of classes are longer than labels may be. */
export function classLabel(name: string): string {
  return name.length <= 63 ? name : createHash('sha256').update(name).digest('hex').slice(0, 32);
}
