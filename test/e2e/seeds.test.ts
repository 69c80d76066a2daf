/** A seed on a cluster: a Git server in it, a tenant's Secret, the Role that the condition asks for, and a turn after it. */
import { beforeAll, describe, expect, test } from 'vitest';
import { useWorld } from './world.ts';

const world = useWorld('seeds');
const PORT = 8000;
/** Git's own CGI, behind the smallest server that runs one. */
const SERVE = `set -e
cd /tmp && export HOME=/tmp && mkdir -p cgi-bin
git init -q -b trunk repo && cd repo
echo from git > README.md && git add . && git commit -q -m 'the first commit' && cd ..
printf '#!/bin/sh\\nexport HOME=/tmp GIT_PROJECT_ROOT=/tmp GIT_HTTP_EXPORT_ALL=1\\nexec git -c safe.directory="*" http-backend\\n' > cgi-bin/git
chmod 755 cgi-bin/git
exec python3 -m http.server --cgi ${PORT}`;

let url = '';
beforeAll(async () => {
  const operator = await world.get('deployment', 'lathe-operator', world.installation.namespace);
  const { containers } = (
    operator.spec['template'] as { spec: { containers: { env: { name: string; value?: string }[] }[] } }
  ).spec;
  const image = containers[0]?.env.find((e) => e.name === 'LATHE_SANDBOX_IMAGE')?.value;
  await world.apply({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'git', namespace: world.namespace },
    spec: {
      automountServiceAccountToken: false,
      securityContext: { runAsNonRoot: true, runAsUser: 65532, seccompProfile: { type: 'RuntimeDefault' } },
      containers: [
        {
          name: 'git',
          image,
          imagePullPolicy: 'IfNotPresent',
          command: ['bash', '-c', SERVE],
          securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: ['ALL'] } },
          readinessProbe: { tcpSocket: { port: PORT }, periodSeconds: 1 },
          resources: { limits: { cpu: '150m', memory: '128Mi' } },
        },
      ],
    },
  });
  await world.condition('pod', 'git', 'Ready', { status: 'True' });
  const { podIP } = (await world.get('pod', 'git')).status as { podIP?: string };
  url = `http://${podIP ?? ''}:${PORT}/cgi-bin/git/repo/.git`;
});

describe('a workspace with a seed from Git', () => {
  test('EN2: waits for its Secret and its Role, says so, and then its turn works in the clone', async () => {
    await world.apply(
      world.workspace('cloned', { seed: { git: { url, secretName: 'git-cred' } } }),
      world.turn('looks', {
        workspace: 'cloned',
        command: 'cat README.md; git log --format=%s; git status --porcelain',
      }),
    );
    await world.condition('workspace', 'cloned', 'Ready', {
      status: 'False',
      reason: 'Seeding',
      message: expect.stringContaining(`create role lathe-secret-git-cred --verb=get`) as string,
    });
    expect((await world.get('turn', 'looks')).status?.phase).toBe('Queued');
    await world.apply(
      {
        apiVersion: 'v1',
        kind: 'Secret',
        metadata: { name: 'git-cred', namespace: world.namespace },
        type: 'kubernetes.io/basic-auth',
        stringData: { username: 'lathe', password: 'not-looked-at' },
      },
      {
        apiVersion: 'rbac.authorization.k8s.io/v1',
        kind: 'Role',
        metadata: { name: 'lathe-secret-git-cred', namespace: world.namespace },
        rules: [{ apiGroups: [''], resources: ['secrets'], resourceNames: ['git-cred'], verbs: ['get'] }],
      },
      {
        apiVersion: 'rbac.authorization.k8s.io/v1',
        kind: 'RoleBinding',
        metadata: { name: 'lathe-secret-git-cred', namespace: world.namespace },
        roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'Role', name: 'lathe-secret-git-cred' },
        subjects: [{ kind: 'ServiceAccount', name: 'lathe-turns', namespace: world.installation.namespace }],
      },
    );
    await world.condition('workspace', 'cloned', 'Ready', { status: 'True' }, 90_000);
    const turn = await world.finished('looks');
    expect(turn.status).toMatchObject({ phase: 'Completed', exitCode: 0 });
    expect(turn.status?.['output']).toBe('from git\nthe first commit\n');
    expect((await world.get('workspace', 'cloned')).status).toMatchObject({ head: 1 });
  });

  test('FW25: another one is seeded from it, at its version', async () => {
    await world.apply(
      world.workspace('copied', { seed: { workspace: { name: 'cloned', version: 1 } } }),
      world.turn('reads', { workspace: 'copied', command: 'cat README.md' }),
    );
    expect((await world.finished('reads')).status?.['output']).toBe('from git\n');
  });

  test.for([
    ['metadata', 'http://169.254.169.254/latest', 'not encrypted'],
    ['metadata-tls', 'https://169.254.169.254/latest', 'no public address'],
    ['api-server', 'https://API_SERVER/x', 'no public address'],
  ] as const)('S6: %s is not called', async ([name, address, says]) => {
    const { clusterIP } = (await world.get('service', 'kubernetes', 'default')).spec as { clusterIP?: string };
    const from = address.replace('API_SERVER', clusterIP ?? '');
    await world.apply(world.workspace(name, { seed: { git: { url: from } } }));
    await world.condition('workspace', name, 'Stalled', {
      status: 'True',
      reason: 'SeedFailed',
      message: expect.stringContaining(says) as string,
    });
  });
});
