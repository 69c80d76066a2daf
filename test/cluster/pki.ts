/** The cluster's certificates and kubeconfigs, by openssl. Made once per cluster; a test cluster does not live a year. */
import { existsSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Layout } from './layout.ts';
import { run } from './run.ts';

type Leaf = Readonly<{ file: string; subject: string; names?: readonly string[]; ca?: string }>;

export async function makePki(layout: Layout, signal: AbortSignal): Promise<void> {
  if (existsSync(join(layout.pki, 'done'))) return;
  await mkdir(layout.pki, { recursive: true, mode: 0o700 });
  for (const ca of ['ca', 'front-proxy-ca']) await authority(layout, ca, signal);
  await run(['openssl', 'genrsa', '-out', join(layout.pki, 'sa.key'), '2048'], signal);
  await run(
    ['openssl', 'rsa', '-in', join(layout.pki, 'sa.key'), '-pubout', '-out', join(layout.pki, 'sa.pub')],
    signal,
  );
  const local = ['IP:127.0.0.1', `IP:${layout.nodeAddress}`, 'DNS:localhost'];
  const service = [
    'kubernetes',
    'kubernetes.default',
    'kubernetes.default.svc',
    'kubernetes.default.svc.cluster.local',
  ];
  const leaves: readonly Leaf[] = [
    {
      file: 'apiserver',
      subject: '/CN=kube-apiserver',
      names: [...local, `IP:${layout.apiServiceAddress}`, ...service.map((s) => `DNS:${s}`)],
    },
    { file: 'apiserver-kubelet', subject: '/O=system:masters/CN=kube-apiserver-kubelet-client' },
    { file: 'front-proxy', subject: '/CN=front-proxy-client', ca: 'front-proxy-ca' },
    {
      file: 'kubelet',
      subject: `/O=system:nodes/CN=system:node:${layout.name}`,
      names: [...local, `DNS:${layout.name}`],
    },
    { file: 'controller-manager', subject: '/CN=system:kube-controller-manager', names: local },
    { file: 'scheduler', subject: '/CN=system:kube-scheduler', names: local },
    { file: 'proxy', subject: '/CN=system:kube-proxy' },
    { file: 'admin', subject: '/O=system:masters/CN=admin' },
  ];
  for (const leaf of leaves) await issue(layout, leaf, signal);
  for (const user of ['kubelet', 'controller-manager', 'scheduler', 'proxy', 'admin']) {
    const path = user === 'admin' ? layout.kubeconfig : join(layout.pki, `${user}.kubeconfig`);
    await writeFile(path, await kubeconfig(layout, user), { mode: 0o600 });
  }
  await writeFile(join(layout.pki, 'done'), '');
}

async function authority(layout: Layout, name: string, signal: AbortSignal): Promise<void> {
  const at = (suffix: string) => join(layout.pki, `${name}.${suffix}`);
  await run(
    [
      'openssl',
      'req',
      '-x509',
      '-newkey',
      'ec',
      '-pkeyopt',
      'ec_paramgen_curve:P-256',
      '-nodes',
      '-days',
      '365',
      '-subj',
      `/CN=${layout.name}-${name}`,
      '-keyout',
      at('key'),
      '-out',
      at('crt'),
    ],
    signal,
  );
}

async function issue(layout: Layout, leaf: Leaf, signal: AbortSignal): Promise<void> {
  const at = (suffix: string) => join(layout.pki, `${leaf.file}.${suffix}`);
  const ca = join(layout.pki, leaf.ca ?? 'ca');
  const extensions = [
    'basicConstraints=CA:FALSE',
    'keyUsage=digitalSignature,keyEncipherment',
    'extendedKeyUsage=serverAuth,clientAuth',
  ];
  if (leaf.names !== undefined) extensions.push(`subjectAltName=${leaf.names.join(',')}`);
  await writeFile(at('ext'), `${extensions.join('\n')}\n`);
  await run(
    [
      'openssl',
      'req',
      '-new',
      '-newkey',
      'ec',
      '-pkeyopt',
      'ec_paramgen_curve:P-256',
      '-nodes',
      '-subj',
      leaf.subject,
      '-keyout',
      at('key'),
      '-out',
      at('csr'),
    ],
    signal,
  );
  await run(
    [
      'openssl',
      'x509',
      '-req',
      '-in',
      at('csr'),
      '-CA',
      `${ca}.crt`,
      '-CAkey',
      `${ca}.key`,
      '-CAcreateserial',
      '-days',
      '365',
      '-extfile',
      at('ext'),
      '-out',
      at('crt'),
    ],
    signal,
  );
}

async function kubeconfig(layout: Layout, user: string): Promise<string> {
  const data = async (file: string) => (await readFile(join(layout.pki, file))).toString('base64');
  return JSON.stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [
      {
        name: layout.name,
        cluster: { server: `https://${layout.nodeAddress}:6443`, 'certificate-authority-data': await data('ca.crt') },
      },
    ],
    users: [
      {
        name: user,
        user: { 'client-certificate-data': await data(`${user}.crt`), 'client-key-data': await data(`${user}.key`) },
      },
    ],
    contexts: [{ name: layout.name, context: { cluster: layout.name, user } }],
    'current-context': layout.name,
  });
}
