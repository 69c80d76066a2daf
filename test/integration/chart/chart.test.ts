import { readdir, readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { parse } from 'yaml';
import { describe, expect, test } from 'vitest';
import { readMigrateConfig, readOperatorConfig, readTurnsConfig } from '../../../operator/config.ts';
import { CHART, find, helm, NAMESPACE, podOf, render, type Pod, type Rendered, type Values } from './render.ts';

const WORKLOADS = ['Deployment', 'StatefulSet', 'DaemonSet', 'Job', 'CronJob'];
const workloads = (objects: readonly Rendered[]) => objects.filter((object) => WORKLOADS.includes(object.kind));

describe('values', () => {
  test.for<[situation: string, values: Values]>([
    ['as they are', {}],
    ['a model', { model: { secretName: 'anthropic' } }],
    ['another Postgres', { postgres: { embedded: false, url: { secretName: 'db' } } }],
    ['nothing that can be left out', { class: { create: false }, crds: { install: false } }],
  ])('%s: helm lint has nothing to say', async ([, values]) => {
    expect(await helm(['lint', '--strict', CHART], values)).toContain('0 chart(s) failed');
  });

  test.for<[situation: string, values: Values, says: RegExp]>([
    ['a name that is misspelt', { modell: { secretName: 'x' } }, /modell/],
    ['one that is misspelt further down', { postgres: { storag: '1Gi' } }, /storag/],
    ['no such log level', { logLevel: 'loud' }, /logLevel/],
    ['half a replica', { turns: { replicas: 0.5 } }, /replicas/],
    ['an external Postgres without its URL', { postgres: { embedded: false } }, /postgres\.url\.secretName must name/],
  ])('%s is refused by name', async ([, values, says]) => {
    await expect(render(values)).rejects.toThrow(says);
  });
});

test('S6: hosts that seeds may come from are given to the turn controller, and nothing else passes for one', async () => {
  const allowedPrivateHosts = ['git.corp.example', '10.0.0.0/8', 'fd00::/8'];
  const turns = podOf(find(await render({ seed: { allowedPrivateHosts } }), 'Deployment', 'lathe-turns'));
  expect(readTurnsConfig(environmentOf(turns.containers[0])).LATHE_SEED_ALLOWED_HOSTS).toEqual(allowedPrivateHosts);
  await expect(render({ seed: { allowedPrivateHosts: ['https://git.corp.example'] } })).rejects.toThrow(
    /allowedPrivateHosts/,
  );
});

describe('pods', () => {
  test('pass Pod Security restricted, have a read-only root and a memory limit', async () => {
    const faults = workloads(await render()).flatMap((object) =>
      faultsOf(podOf(object)).map((fault) => `${object.metadata.name}: ${fault}`),
    );
    expect(faults).toEqual([]);
  });

  test('are given the environment that their program reads', async () => {
    const objects = await render();
    const operator = podOf(find(objects, 'Deployment', 'lathe-operator'));
    const turns = podOf(find(objects, 'Deployment', 'lathe-turns'));
    expect(readMigrateConfig(environmentOf(operator.initContainers[0])).LATHE_DATABASE_URL).toMatch(/^postgres:/);
    expect(readOperatorConfig(environmentOf(operator.containers[0]))).toMatchObject({
      LATHE_RUNTIME_IMAGE: 'lathe.dev/runtime:latest',
      LATHE_SANDBOX_IMAGE: 'lathe.dev/sandbox:latest',
    });
    const config = readTurnsConfig(environmentOf(turns.containers[0]));
    expect(config).toMatchObject({
      LATHE_SCRATCH_SIZE: '4Gi',
      LATHE_SEED_CONCURRENCY: 2,
      LATHE_SEED_ALLOWED_HOSTS: [],
    });
    expect(turns.containers[0]?.ports).toEqual([
      { name: 'health', containerPort: config.LATHE_HEALTH_PORT },
      { name: 'sandboxes', containerPort: config.LATHE_SANDBOX_PORT },
      { name: 'programs', containerPort: config.LATHE_PROGRAMS_PORT },
    ]);
  });

  test('carry the labels by which the policies of sandboxes let them out', async () => {
    const { template } = find(await render(), 'Deployment', 'lathe-turns').spec as {
      template: { metadata: { labels: object } };
    };
    expect(template.metadata.labels).toMatchObject({
      'app.kubernetes.io/name': 'lathe',
      'app.kubernetes.io/component': 'turns',
    });
  });
});

describe('Postgres', () => {
  test('of the chart keeps its password when the release goes, as its volume stays too', async () => {
    const secret = find(await render(), 'Secret', 'lathe-postgres');
    expect(secret.metadata.annotations['helm.sh/resource-policy']).toBe('keep');
  });

  test('of the chart is reached by our own processes alone', async () => {
    const policy = find(await render(), 'NetworkPolicy', 'lathe-postgres');
    expect(policy.metadata.namespace).toBe(NAMESPACE);
    expect(JSON.stringify(policy.spec)).not.toContain('namespaceSelector');
    expect(policy.spec).toMatchObject({ policyTypes: ['Ingress'], ingress: [{ from: [{}], ports: [{ port: 5432 }] }] });
  });

  test('takes its settings as the official image does', async () => {
    const pod = podOf(
      find(await render({ postgres: { settings: { max_connections: 2_000_000 } } }), 'StatefulSet', 'lathe-postgres'),
    );
    expect(pod.containers[0]?.args).toEqual(
      expect.arrayContaining(['-c', 'max_connections=2000000', 'listen_addresses=*', 'wal_compression=on']),
    );
  });

  test('with a password of yours: none is made up, so a render without a cluster is the same each time', async () => {
    const values = { postgres: { passwordSecretName: 'mine' } };
    const objects = await render(values);
    expect(objects.filter((object) => object.kind === 'Secret')).toEqual([]);
    expect(await render(values)).toEqual(objects);
    const turns = podOf(find(objects, 'Deployment', 'lathe-turns')).containers[0];
    expect(turns?.env.find((variable) => variable.name === 'LATHE_DATABASE_PASSWORD')?.valueFrom).toEqual({
      secretKeyRef: { name: 'mine', key: 'password' },
    });
  });

  test('of your own: none of ours is installed, and the URL comes from your Secret', async () => {
    const objects = await render({ postgres: { embedded: false, url: { secretName: 'db', secretKey: 'dsn' } } });
    expect(objects.filter((object) => object.metadata.name === 'lathe-postgres')).toEqual([]);
    for (const object of workloads(objects)) {
      const pod = podOf(object);
      for (const container of [...pod.initContainers, ...pod.containers])
        expect(container.env.find((variable) => variable.name === 'LATHE_DATABASE_URL')?.valueFrom).toEqual({
          secretKeyRef: { name: 'db', key: 'dsn' },
        });
    }
  });
});

describe('the default class', () => {
  const classOf = async (values: Values) => find(await render(values), 'WorkspaceClass', 'default');

  test('has our image and, with a key named, a model', async () => {
    const made = await classOf({ model: { secretName: 'anthropic' } });
    expect(made.metadata.annotations['lathe.dev/is-default-class']).toBe('true');
    expect(made.spec).toMatchObject({
      images: { default: 'lathe.dev/sandbox:latest' },
      models: [{ provider: 'Anthropic', apiKeySecret: { name: 'anthropic', key: 'key' } }],
    });
  });

  test('takes further models, images and ceilings, and nothing that was said is dropped', async () => {
    const scripted = { name: 'scripted', provider: 'Scripted', script: '- text: hello' };
    const said = {
      models: [scripted],
      defaultModel: 'scripted',
      images: { allowed: ['docker.io/**'] },
      limits: { steps: 3 },
    };
    const { spec } = await classOf({ model: { secretName: 'anthropic', name: 'm' }, class: { spec: said } });
    expect(spec).toMatchObject({
      defaultModel: 'scripted',
      images: { default: 'lathe.dev/sandbox:latest', allowed: ['docker.io/**'] },
      limits: { steps: 3 },
    });
    expect(spec?.['models']).toEqual([expect.objectContaining({ name: 'm' }), scripted]);
  });

  test('has no model where none is named', async () => {
    expect((await classOf({})).spec).toEqual({ images: { default: 'lathe.dev/sandbox:latest' } });
  });
});

describe('custom resource definitions', () => {
  test('are those that are generated, and stay when the release goes', async () => {
    const folder = fileURLToPath(new URL('../../../crds/gen/', import.meta.url));
    const generated = await Promise.all(
      (await readdir(folder)).map(async (file) => parse(await readFile(`${folder}${file}`, 'utf8')) as Rendered),
    );
    const installed = (await render()).filter((object) => object.kind === 'CustomResourceDefinition');
    expect(installed.map((crd) => crd.metadata.name).toSorted()).toEqual(
      generated.map((crd) => crd.metadata.name).toSorted(),
    );
    for (const crd of generated) {
      const there = find(installed, crd.kind, crd.metadata.name);
      expect(there.spec).toEqual(crd.spec);
      expect(there.metadata.annotations['helm.sh/resource-policy']).toBe('keep');
    }
  });

  test('can be left to somebody else', async () => {
    const objects = await render({ crds: { install: false } });
    expect(objects.filter((object) => object.kind === 'CustomResourceDefinition')).toEqual([]);
  });
});

test('the notes end with commands, and their resources parse', async () => {
  const text = await helm(['install', 'lathe', CHART, '--namespace', NAMESPACE, '--dry-run=client']);
  const notes = text.slice(text.indexOf('NOTES:'));
  const manifest = /<<EOF\n([\s\S]*?)\n\s*EOF/.exec(notes)?.[1] ?? '';
  expect(manifest.split(/\n\s*---\n/).map((document) => (parse(document) as Rendered).kind)).toEqual([
    'Workspace',
    'Turn',
  ]);
  expect(notes).toContain('kubectl wait --for=condition=Finished');
  expect(notes).toContain('--reuse-values --set model.secretName=');
});

/** What Pod Security `restricted` would refuse, and our own habits beyond it. */
function faultsOf(pod: Pod): string[] {
  const own = pod.securityContext;
  const faults: string[] = [];
  for (const [field, want] of [
    ['runAsNonRoot', true],
    ['seccompProfile', { type: 'RuntimeDefault' }],
  ] as const)
    if (JSON.stringify(own[field]) !== JSON.stringify(want)) faults.push(`securityContext.${field}`);
  for (const field of ['hostNetwork', 'hostPID', 'hostIPC']) if (pod[field] !== undefined) faults.push(field);
  for (const volume of pod.volumes) if ('hostPath' in volume) faults.push(`volume ${JSON.stringify(volume)}`);
  for (const container of [...pod.initContainers, ...pod.containers]) {
    const locked = { allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: { drop: ['ALL'] } };
    if (JSON.stringify(container.securityContext) !== JSON.stringify(locked))
      faults.push(`${container.name}: security`);
    if (container.resources?.limits?.['memory'] === undefined) faults.push(`${container.name}: no memory limit`);
  }
  return faults;
}

/** As the kubelet would put it together, with something for what comes from elsewhere. */
function environmentOf(container: Pod['containers'][number] | undefined): Record<string, string> {
  const elsewhere: Record<string, string> = { LATHE_POSTGRES_SERVICE_HOST: '10.0.0.1' };
  for (const { name, value } of container?.env ?? [])
    elsewhere[name] = value?.replaceAll(/\$\((\w+)\)/g, (_, other: string) => elsewhere[other] ?? '') ?? 'elsewhere';
  return elsewhere;
}
