/** Every program of a built cluster, in the order they start: its command and what says that it is ready. Pure. */
import { join } from 'node:path';
import type { Binaries } from './binaries.ts';
import { BUSYBOX_IMAGE, socketOf } from './containers.ts';
import type { Layout } from './layout.ts';
import { inNetwork } from './network.ts';

export type Program = Readonly<{
  name: string;
  command: readonly [string, ...string[]];
  env?: Readonly<Record<string, string>>;
  /** Asked with kubectl until it answers; absent: running is enough. */
  ready?: 'socket' | 'etcd' | 'apiserver' | 'node';
}>;

export function controlPlane(layout: Layout, bin: Binaries): readonly Program[] {
  const pki = (file: string) => join(layout.pki, file);
  const config = (user: string) => pki(`${user}.kubeconfig`);
  const program = (name: string, args: readonly string[], rest: Partial<Program> = {}): Program => ({
    name,
    command: [...inNetwork(layout), bin[name] ?? name, ...args],
    ...rest,
  });
  const etcd = `http://${layout.nodeAddress}`;
  const loopbackOnly = ['--bind-address', layout.nodeAddress];
  return [
    program('containerd', ['--config', join(layout.root, 'containerd.toml'), '--log-level', 'warn'], {
      ready: 'socket',
      // The shim is looked up beside containerd.
      env: { PATH: `${folderOf(bin['containerd'])}:/usr/sbin:/usr/bin:/sbin:/bin` },
    }),
    program(
      'etcd',
      [
        ...[
          '--data-dir',
          join(layout.root, 'etcd'),
          '--listen-client-urls',
          `${etcd}:2379`,
          '--advertise-client-urls',
          `${etcd}:2379`,
        ],
        ...[
          '--listen-peer-urls',
          `${etcd}:2380`,
          '--initial-advertise-peer-urls',
          `${etcd}:2380`,
          '--initial-cluster',
          `default=${etcd}:2380`,
        ],
        ...['--unsafe-no-fsync', '--log-level', 'warn', '--quota-backend-bytes', '2147483648'],
      ],
      { ready: 'etcd' },
    ),
    program(
      'kube-apiserver',
      [
        ...[
          '--etcd-servers',
          `${etcd}:2379`,
          '--bind-address',
          layout.nodeAddress,
          '--advertise-address',
          layout.nodeAddress,
        ],
        ...[
          '--service-cluster-ip-range',
          layout.serviceNetwork,
          '--authorization-mode',
          'Node,RBAC',
          '--allow-privileged=true',
        ],
        ...[
          '--client-ca-file',
          pki('ca.crt'),
          '--tls-cert-file',
          pki('apiserver.crt'),
          '--tls-private-key-file',
          pki('apiserver.key'),
        ],
        ...[
          '--kubelet-client-certificate',
          pki('apiserver-kubelet.crt'),
          '--kubelet-client-key',
          pki('apiserver-kubelet.key'),
        ],
        ...['--kubelet-preferred-address-types', 'InternalIP'],
        ...['--service-account-issuer', 'https://kubernetes.default.svc', '--service-account-key-file', pki('sa.pub')],
        ...['--service-account-signing-key-file', pki('sa.key'), '--enable-admission-plugins', 'NodeRestriction'],
        ...[
          '--requestheader-client-ca-file',
          pki('front-proxy-ca.crt'),
          '--requestheader-allowed-names',
          'front-proxy-client',
        ],
        ...['--requestheader-username-headers', 'X-Remote-User', '--requestheader-group-headers', 'X-Remote-Group'],
        ...['--requestheader-extra-headers-prefix', 'X-Remote-Extra-', '--enable-aggregator-routing=true'],
        ...['--proxy-client-cert-file', pki('front-proxy.crt'), '--proxy-client-key-file', pki('front-proxy.key')],
        ...[
          '--audit-policy-file',
          join(layout.root, 'audit-policy.json'),
          '--audit-log-path',
          layout.auditLog,
          '--audit-log-maxsize',
          '100',
          '--audit-log-maxbackup',
          '2',
        ],
        // The defaults are half of this; one small machine serves every test at once.
        ...['--max-requests-inflight', '800', '--max-mutating-requests-inflight', '400'],
      ],
      { ready: 'apiserver' },
    ),
    program('kube-controller-manager', [
      ...['--kubeconfig', config('controller-manager'), ...loopbackOnly, '--use-service-account-credentials'],
      ...['--service-account-private-key-file', pki('sa.key'), '--root-ca-file', pki('ca.crt')],
      ...[
        '--cluster-signing-cert-file',
        pki('ca.crt'),
        '--cluster-signing-key-file',
        pki('ca.key'),
        '--leader-elect=false',
      ],
      ...['--concurrent-namespace-syncs', '20', '--namespace-sync-period', '1m'],
    ]),
    program('kube-scheduler', ['--kubeconfig', config('scheduler'), ...loopbackOnly, '--leader-elect=false']),
    program(
      'kubelet',
      [
        '--config',
        join(layout.root, 'kubelet.json'),
        '--kubeconfig',
        config('kubelet'),
        '--root-dir',
        join(layout.root, 'kubelet'),
        '--hostname-override',
        layout.name,
        '--node-ip',
        layout.nodeAddress,
      ],
      { ready: 'node' },
    ),
    program('kube-proxy', ['--config', join(layout.root, 'kube-proxy.json'), '--hostname-override', layout.name]),
    program('kube-router', [
      ...[
        '--kubeconfig',
        layout.kubeconfig,
        '--hostname-override',
        layout.name,
        '--run-firewall=true',
        '--run-router=false',
      ],
      ...[
        '--run-service-proxy=false',
        '--run-loadbalancer=false',
        '--service-cluster-ip-range',
        layout.serviceNetwork,
        '--health-port',
        '20244',
      ],
    ]),
    program('local-path-provisioner', [
      ...[
        'start',
        '--kubeconfig',
        layout.kubeconfig,
        '--config',
        join(layout.root, 'local-path.json'),
        '--namespace',
        'kube-system',
      ],
      ...['--helper-image', BUSYBOX_IMAGE, '--helper-pod-file', join(layout.root, 'local-path-helper.yaml')],
      ...[
        '--configmap-name',
        'local-path-config',
        '--service-account-name',
        'default',
        '--provisioner-name',
        'rancher.io/local-path',
      ],
    ]),
  ];
}

/** Files that the programs read, by name below the cluster's root. Pure. */
export function controlPlaneFiles(layout: Layout): Readonly<Record<string, string>> {
  const pki = (file: string) => join(layout.pki, file);
  const json = (value: object) => JSON.stringify(value, null, 2);
  return {
    'audit-policy.json': json({
      apiVersion: 'audit.k8s.io/v1',
      kind: 'Policy',
      omitStages: ['RequestReceived'],
      rules: [
        { level: 'None', verbs: ['get', 'list', 'watch'] },
        { level: 'None', resources: [{ group: 'coordination.k8s.io' }] },
        { level: 'Metadata' },
      ],
    }),
    'kubelet.json': json({
      apiVersion: 'kubelet.config.k8s.io/v1beta1',
      kind: 'KubeletConfiguration',
      address: layout.nodeAddress,
      authentication: {
        anonymous: { enabled: false },
        webhook: { enabled: true },
        x509: { clientCAFile: pki('ca.crt') },
      },
      authorization: { mode: 'Webhook' },
      tlsCertFile: pki('kubelet.crt'),
      tlsPrivateKeyFile: pki('kubelet.key'),
      containerRuntimeEndpoint: `unix://${socketOf(layout)}`,
      cgroupDriver: 'cgroupfs',
      cgroupRoot: layout.cgroup,
      failCgroupV1: false,
      failSwapOn: false,
      healthzBindAddress: layout.nodeAddress,
      resolvConf: '/etc/resolv.conf',
      // Node-only images are never pulled again: a full disk must not take them away.
      imageGCHighThresholdPercent: 100,
      imageGCLowThresholdPercent: 99,
      evictionHard: {
        'memory.available': '100Mi',
        'nodefs.available': '1%',
        'imagefs.available': '1%',
        'nodefs.inodesFree': '1%',
      },
      maxPods: 200,
      serializeImagePulls: false,
      registryPullQPS: 0,
      syncFrequency: '10s',
    }),
    'kube-proxy.json': json({
      apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
      kind: 'KubeProxyConfiguration',
      mode: 'nftables',
      clientConnection: { kubeconfig: pki('proxy.kubeconfig') },
      clusterCIDR: layout.podNetwork,
      bindAddress: layout.nodeAddress,
      healthzBindAddress: `${layout.nodeAddress}:10256`,
      metricsBindAddress: `${layout.nodeAddress}:10249`,
      conntrack: { maxPerCore: 0 },
    }),
    'local-path.json': json({
      nodePathMap: [{ node: 'DEFAULT_PATH_FOR_NON_LISTED_NODES', paths: [join(layout.root, 'volumes')] }],
    }),
    'local-path-helper.yaml': json({
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name: 'helper-pod' },
      spec: { containers: [{ name: 'helper-pod', image: BUSYBOX_IMAGE, imagePullPolicy: 'IfNotPresent' }] },
    }),
  };
}

/** What a cluster has before anything is installed. Pure. */
export function clusterObjects(): readonly object[] {
  const script = (name: string, line: string) => [name, `#!/bin/sh\nset -eu\n${line}\n`] as const;
  return [
    {
      apiVersion: 'storage.k8s.io/v1',
      kind: 'StorageClass',
      metadata: { name: 'local-path', annotations: { 'storageclass.kubernetes.io/is-default-class': 'true' } },
      provisioner: 'rancher.io/local-path',
      volumeBindingMode: 'WaitForFirstConsumer',
      reclaimPolicy: 'Delete',
    },
    {
      apiVersion: 'v1',
      kind: 'ConfigMap',
      metadata: { name: 'local-path-config', namespace: 'kube-system' },
      data: Object.fromEntries([
        script('setup', 'mkdir -m 0777 -p "$VOL_DIR"'),
        script('teardown', 'rm -rf "$VOL_DIR"'),
      ]),
    },
  ];
}

function folderOf(path: string | undefined): string {
  return path === undefined ? '' : path.slice(0, path.lastIndexOf('/'));
}
