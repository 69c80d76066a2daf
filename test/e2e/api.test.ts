/** The live API through a real API server, with the cluster's own users, rights and audit log. */
import { readFile } from 'node:fs/promises';
import { request } from 'node:https';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { useWorld } from './world.ts';

const world = useWorld('api');
const USER = ['--as', 'ada', '--as-group', 'system:authenticated'];
const OTHER = ['--as', 'mallory', '--as-group', 'system:authenticated'];
const path = (rest: string, workspace = 'files') =>
  `/apis/live.lathe.dev/v1alpha1/namespaces/${world.namespace}/workspaces/${workspace}/${rest}`;
const raw = (as: string[], rest: string) => world.kubectl.run(['get', '--raw', path(rest), ...as]);
const put = (as: string[], rest: string, input: string) =>
  world.kubectl.run(['replace', '--raw', path(rest), '-f', '-', ...as], { input });
const installNamespace = () => world.installation.namespace;
const replicas = (count: number) =>
  world.kubectl.run(['-n', installNamespace(), 'scale', 'deployment/lathe-api', `--replicas=${count}`]);

beforeAll(async () => {
  await world.apply(world.workspace('files'), {
    apiVersion: 'rbac.authorization.k8s.io/v1',
    kind: 'RoleBinding',
    metadata: { name: 'lathe', namespace: world.namespace },
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'lathe-user' },
    subjects: [{ apiGroup: 'rbac.authorization.k8s.io', kind: 'User', name: 'ada' }],
  });
  await world.kubectl.run([
    ...['-n', world.namespace, 'wait', '--for=condition=Ready', 'workspace/files', '--timeout=60s'],
  ]);
  await world.kubectl.run(['wait', '--for=condition=Available', 'apiservice/v1alpha1.live.lathe.dev', '--timeout=60s']);
});
afterAll(async () => {
  await replicas(2);
});

describe('with a kubeconfig', () => {
  test('a user with the verb writes, reads and lists, with no pod at all', async () => {
    await put(USER, 'files?path=/README.md', '{"hello":"world"}');
    expect(JSON.parse(await raw(USER, 'files?path=/README.md'))).toEqual({ hello: 'world' });
    const list = JSON.parse(await raw(USER, 'files')) as { items: { path: string }[] };
    expect(list.items.map((item) => item.path)).toEqual(['/README.md']);
    expect(await world.list('pods')).toEqual([]);
  });

  test('a user without it is refused by the cluster, and kubectl says why', async () => {
    await expect(raw(OTHER, 'files?path=/README.md')).rejects.toThrow(/Forbidden|forbidden/);
    await expect(put(OTHER, 'files?path=/x', '1')).rejects.toThrow(/forbidden/i);
  });

  test('a name is the one that the cluster gave, whatever is in it', async () => {
    const name = 'Müller, ada';
    await world.apply({
      apiVersion: 'rbac.authorization.k8s.io/v1',
      kind: 'RoleBinding',
      metadata: { name: 'odd-name', namespace: world.namespace },
      roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'lathe-user' },
      subjects: [{ apiGroup: 'rbac.authorization.k8s.io', kind: 'User', name }],
    });
    const as = ['--as', name, '--as-group', 'dev, system:masters', '--as-group', 'system:authenticated'];
    await put(as, 'files?path=/by-mueller', '1');
    const { items } = JSON.parse(await raw(as, 'versions')) as { items: { actor: string }[] };
    expect(items[0]?.actor).toBe(name);
  });

  test('errors come as the cluster says them', async () => {
    await expect(raw(USER, 'files?path=/nowhere')).rejects.toThrow(/there is no file|not found/i);
    await expect(put(USER, 'files?path=../x', '1')).rejects.toThrow(/\.\. segment/);
  });

  test('the audit log names who wrote what', async () => {
    const { auditLog } = world.installation.cluster;
    if (auditLog === undefined) return;
    await put(USER, 'files?path=/audited', '1');
    await expect
      .poll(async () => {
        const lines = (await readFile(auditLog, 'utf8')).split('\n').filter((line) => line.includes('audited'));
        return lines.map((line) => {
          const { verb, user, impersonatedUser, objectRef } = JSON.parse(line) as Record<
            string,
            Record<string, string>
          >;
          return [verb, impersonatedUser?.['username'] ?? user?.['username'], objectRef?.['subresource']];
        });
      })
      .toContainEqual(['update', 'ada', 'files']);
  });
});

test('directly, a token of audience lathe.dev opens it, and one of the cluster does not', async () => {
  await world.kubectl.run(['-n', world.namespace, 'create', 'serviceaccount', 'robot']);
  await world.kubectl.run([
    ...['-n', world.namespace, 'create', 'rolebinding', 'robot', '--clusterrole=lathe-viewer'],
    `--serviceaccount=${world.namespace}:robot`,
  ]);
  const token = async (...audience: string[]) =>
    (await world.kubectl.run(['-n', world.namespace, 'create', 'token', 'robot', ...audience])).trim();
  const service = await world.get('service', 'lathe-api', installNamespace());
  const secret = await world.kubectl.json<{ data: Record<string, string> }>([
    ...['-n', installNamespace(), 'get', 'secret', 'lathe-api-tls'],
  ]);
  const ask = (bearer: string): Promise<number> =>
    new Promise((resolve, reject) => {
      request(
        {
          host: String(service.spec['clusterIP']),
          port: 9443,
          path: path('files'),
          headers: { authorization: `Bearer ${bearer}` },
          ca: Buffer.from(secret.data['ca.crt'] ?? '', 'base64'),
          servername: `lathe-api.${installNamespace()}.svc`,
          agent: false,
        },
        (response) => resolve(response.resume().statusCode ?? 0),
      )
        .on('error', reject)
        .end();
    });
  expect(await ask(await token('--audience=lathe.dev'))).toBe(200);
  expect(await ask(await token())).toBe(401);
});

test('K11: while nobody answers for the live API, the APIService is withdrawn, other namespaces are deleted, and it comes back', async () => {
  const other = `${world.namespace}-other`;
  await world.kubectl.run(['create', 'namespace', other]);
  await replicas(0);
  await world.kubectl.run(['delete', 'namespace', other, '--timeout=150s']);
  await expect
    .poll(
      () => world.kubectl.run(['get', 'apiservice', 'v1alpha1.live.lathe.dev', '--ignore-not-found', '-o', 'name']),
      {
        timeout: 90_000,
        interval: 1_000,
      },
    )
    .toBe('');
  await replicas(2);
  await world.kubectl.run(['wait', '--for=create', 'apiservice/v1alpha1.live.lathe.dev', '--timeout=90s']);
  await world.kubectl.run(['wait', '--for=condition=Available', 'apiservice/v1alpha1.live.lathe.dev', '--timeout=60s']);
  expect(JSON.parse(await raw(USER, 'files?path=/README.md'))).toEqual({ hello: 'world' });
}, 300_000);
