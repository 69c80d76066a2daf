/** What the chart makes, as Helm renders it: rights, confinement, and values that are refused. */
import { beforeAll, describe, expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { binaries } from '../../cluster/binaries.ts';
import { run } from '../../cluster/run.ts';

type Made = Readonly<{
  kind: string;
  metadata: { name: string; annotations?: Record<string, string> };
  spec?: { template?: { spec: { containers: Container[]; initContainers?: Container[] } } };
  rules?: { resources: string[]; verbs: string[]; apiGroups: string[] }[];
}>;
type Container = Readonly<{ name: string; securityContext: object }>;
let helm: string;
beforeAll(async () => {
  helm = (await binaries(() => undefined, AbortSignal.timeout(60_000), 'helm'))['helm'] ?? 'helm';
});
const render = async (...set: string[]) => {
  const args = ['template', 'lathe', 'charts/lathe', '--namespace', 'install', ...set.flatMap((s) => ['--set', s])];
  return parseAllDocuments(await run([helm, ...args], AbortSignal.timeout(30_000))).flatMap((d) =>
    d.toJS() === null ? [] : [d.toJS() as Made],
  );
};
const named = (objects: readonly Made[], kind: string, name: string) =>
  objects.filter((o) => o.kind === kind && o.metadata.name === name);

describe('the chart', () => {
  test('helm lint finds nothing', async () => {
    expect(await run([helm, 'lint', 'charts/lathe'], AbortSignal.timeout(30_000))).toContain('0 chart(s) failed');
  });

  test('every container of ours is confined as a sandbox is', async () => {
    const pods = (await render()).flatMap((o) => o.spec?.template?.spec ?? []);
    const containers = pods.flatMap((p) => [...p.containers, ...(p.initContainers ?? [])]);
    expect(containers.map((c) => c.name).toSorted()).toEqual(['migrate', 'operator', 'postgres', 'turns']);
    for (const c of containers)
      expect(c.securityContext).toEqual({
        allowPrivilegeEscalation: false,
        readOnlyRootFilesystem: true,
        capabilities: { drop: ['ALL'] },
      });
  });

  test('CRDs are kept when the release goes', async () => {
    const crds = (await render()).filter((o) => o.kind === 'CustomResourceDefinition');
    expect(crds).toHaveLength(4);
    for (const crd of crds) expect(crd.metadata.annotations?.['helm.sh/resource-policy']).toBe('keep');
  });

  test('the turn controller may review tokens, and read its certificate and the one key that is named', async () => {
    const objects = await render('model.secretName=anthropic', 'model.name=m');
    expect(named(objects, 'ClusterRole', 'lathe-turns')[0]?.rules).toEqual([
      { apiGroups: ['authentication.k8s.io'], resources: ['tokenreviews'], verbs: ['create'] },
    ]);
    expect(named(objects, 'Role', 'lathe-turns')[0]?.rules).toEqual([
      { apiGroups: [''], resources: ['secrets'], resourceNames: ['lathe-turns-tls', 'anthropic'], verbs: ['get'] },
    ]);
  });

  test('the operator has no wildcard, and no right to Secrets outside of its namespace', async () => {
    const rules = named(await render(), 'ClusterRole', 'lathe-operator')[0]?.rules ?? [];
    expect(rules.length).toBeGreaterThan(0);
    for (const rule of rules) {
      expect([...rule.verbs, ...rule.resources, ...rule.apiGroups]).not.toContain('*');
      expect(rule.resources).not.toContain('secrets');
    }
  });

  test('another Postgres: no StatefulSet, and the URL comes from the Secret that is named', async () => {
    const objects = await render('postgres.embedded=false', 'postgres.url.secretName=mine');
    expect(objects.filter((o) => o.kind === 'StatefulSet')).toEqual([]);
    expect(JSON.stringify(named(objects, 'Deployment', 'lathe-turns'))).toContain(
      '"secretKeyRef":{"name":"mine","key":"url"}',
    );
  });

  test.for<[situation: string, set: string[], says: string]>([
    ['a value that does not exist', ['turnz.replicas=2'], 'turnz'],
    ['another Postgres without its Secret', ['postgres.embedded=false'], 'postgres.url.secretName must name'],
    ['a key without a model', ['model.secretName=a'], 'model.name must name'],
    ['a level that is none', ['logLevel=loud'], 'logLevel'],
  ])('refused: %s', async ([, set, says]) => {
    await expect(render(...set)).rejects.toThrow(says);
  });
});
