/** Each process's rights, whole: a new one shows here before it shows in a cluster. */
import { beforeAll, describe, expect, test } from 'vitest';
import { find, render, type Rendered } from './render.ts';

let objects: readonly Rendered[] = [];
beforeAll(async () => {
  objects = await render({ model: { secretName: 'anthropic', otherSecretNames: ['second'] } });
});

/** One line a rule, as in `kubectl auth can-i --list`: resource [names] verbs. */
function rights(kind: 'ClusterRole' | 'Role', name: string, from = objects): readonly string[] {
  return (find(from, kind, name).rules ?? []).flatMap((rule) =>
    rule.resources.map((resource) => {
      const group = rule.apiGroups[0] === '' ? resource : `${resource}.${rule.apiGroups[0]}`;
      const names = rule.resourceNames.length === 0 ? '' : ` [${rule.resourceNames.join(' ')}]`;
      return `${group}${names} ${rule.verbs.join(',')}`;
    }),
  );
}

describe('the turn controller', () => {
  test('reviews tokens, and writes nothing anywhere', () => {
    expect(rights('ClusterRole', 'lathe-turns')).toEqual(['tokenreviews.authentication.k8s.io create']);
  });

  test('reads its certificate and the model keys that were named, and no other Secret', () => {
    expect(rights('Role', 'lathe-turns')).toEqual(['secrets [lathe-turns-tls anthropic second] get']);
  });

  test('may read what the models of the default class name, each once', async () => {
    const entry = (name: string, secret: string) => ({
      name,
      provider: 'Anthropic',
      model: name,
      apiKeySecret: { name: secret, key: 'key' },
    });
    const made = await render({
      model: { secretName: 'anthropic' },
      class: { spec: { models: [entry('a', 'anthropic'), entry('b', 'other')] } },
    });
    expect(rights('Role', 'lathe-turns', made)).toEqual(['secrets [lathe-turns-tls anthropic other] get']);
  });

  test('without a model, its certificate is all that it reads', async () => {
    expect(rights('Role', 'lathe-turns', await render())).toEqual(['secrets [lathe-turns-tls] get']);
  });
});

describe('the live API', () => {
  test('may ask who somebody is and what they may, and reads two certificates', () => {
    expect(rights('ClusterRole', 'lathe-api')).toEqual([
      'tokenreviews.authentication.k8s.io create',
      'subjectaccessreviews.authorization.k8s.io create',
    ]);
    expect(rights('Role', 'lathe-api')).toEqual(['secrets [lathe-api-tls lathe-client-tls] get']);
  });

  test('is not there when it is switched off', async () => {
    const made = await render({ api: { enabled: false } });
    expect(made.filter(({ metadata }) => metadata.name.startsWith('lathe-api'))).toEqual([]);
  });
});

describe('the operator', () => {
  test('has these rights in every namespace, and no right to Secrets, exec or logs', () => {
    expect(rights('ClusterRole', 'lathe-operator')).toEqual([
      'workspaces.lathe.dev get,list,watch',
      'turns.lathe.dev get,list,watch',
      'sandboxes.lathe.dev get,list,watch',
      'workspaceclasses.lathe.dev get,list,watch',
      'workspacequotas.lathe.dev get,list,watch',
      'workspaces/status.lathe.dev patch',
      'turns/status.lathe.dev patch',
      'sandboxes/status.lathe.dev patch',
      'workspaceclasses/status.lathe.dev patch',
      'workspacequotas/status.lathe.dev patch',
      'sandboxes.lathe.dev create',
      'pods get,list,watch,create,delete',
      'persistentvolumeclaims get,create',
      'serviceaccounts create,patch',
      'networkpolicies.networking.k8s.io create,patch',
      'configmaps get',
      'namespaces get',
      'storageclasses.storage.k8s.io list',
      'apiservices.apiregistration.k8s.io create',
      'apiservices.apiregistration.k8s.io [v1alpha1.live.lathe.dev] get,patch,delete',
      'clusterroles.rbac.authorization.k8s.io [lathe-operator] get',
      'events create',
    ]);
  });

  test('at home has its Lease, the certificates by name, and the address of the turn controller', () => {
    expect(rights('Role', 'lathe-operator')).toEqual([
      'leases.coordination.k8s.io create',
      'leases.coordination.k8s.io [lathe-operator] get,patch',
      'secrets create',
      'secrets [lathe-ca lathe-turns-tls lathe-api-tls lathe-client-tls] get,patch',
      'services [lathe-turns] get',
      'endpointslices.discovery.k8s.io list',
    ]);
  });
});

test('nothing in the chart has a wildcard, and nobody may write roles', () => {
  for (const { kind, metadata, rules = [] } of objects) {
    for (const rule of rules) {
      expect([...rule.apiGroups, ...rule.resources, ...rule.verbs], `${kind} ${metadata.name}`).not.toContain('*');
      if (rule.apiGroups.includes('rbac.authorization.k8s.io'))
        expect(rule.verbs, `${kind} ${metadata.name}`).toEqual(['get']);
    }
  }
});

test('people get theirs by the roles they have: view, edit, admin', () => {
  const aggregated = objects
    .filter((object) => object.kind === 'ClusterRole')
    .flatMap(({ metadata }) =>
      Object.keys(metadata.labels)
        .filter((label) => label.startsWith('rbac.authorization.k8s.io/aggregate-to-'))
        .map((label) => `${metadata.name} → ${label.split('-').at(-1)}`),
    );
  expect(aggregated).toEqual(['lathe-viewer → view', 'lathe-user → edit', 'lathe-admin → admin']);
  expect(rights('ClusterRole', 'lathe-viewer').every((line) => /^\S+\.lathe\.dev get(,list,watch)?$/.test(line))).toBe(
    true,
  );
  expect(rights('ClusterRole', 'lathe-user').some((line) => line.startsWith('workspaceclasses'))).toBe(false);
});
