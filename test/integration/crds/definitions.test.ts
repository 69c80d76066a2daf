/** CD2: what the API server takes and refuses of our resources, with words that a person understands. */
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { parse } from 'yaml';
import { readdir, readFile } from 'node:fs/promises';
import { CLASSES, SANDBOXES, TURNS, WORKSPACES } from '../../../operator/controllers/resources.ts';
import { isAlreadyExists, KubeError } from '../../../operator/kube/errors.ts';
import type { KubeObject, NewObject, Resource } from '../../../operator/kube/types.ts';
import { useApiServer } from '../kube/world.ts';

const world = useApiServer();
const DEFINITIONS: Resource = {
  group: 'apiextensions.k8s.io',
  version: 'v1',
  plural: 'customresourcedefinitions',
  kind: 'CustomResourceDefinition',
  namespaced: false,
};
const RESOURCES: Readonly<Record<string, Resource>> = {
  Workspace: WORKSPACES,
  Turn: TURNS,
  Sandbox: SANDBOXES,
  WorkspaceClass: CLASSES,
};

/** Ours alone: where Lathe is installed the definitions are there, and belong to that release. */
const made: string[] = [];
beforeAll(async () => {
  for (const file of await readdir('crds/gen')) {
    const definition = parse(await readFile(`crds/gen/${file}`, 'utf8')) as NewObject;
    await world.client.create(DEFINITIONS, definition).then(
      () => made.push(String(definition.metadata.name)),
      (error: unknown) => {
        if (!isAlreadyExists(error)) throw error;
      },
    );
  }
  // Served a moment after it was made.
  for (const resource of Object.values(RESOURCES)) {
    await vi.waitFor(() => world.client.list(resource, { limit: 1 }), { timeout: 20_000, interval: 100 });
  }
});
afterAll(async () => {
  for (const name of made) await world.client.delete(DEFINITIONS, { name });
  for (const name of made) {
    await vi.waitFor(
      () =>
        world.client.get(DEFINITIONS, { name }).then(
          () => Promise.reject(new Error(`${name} is still there`)),
          () => undefined,
        ),
      { timeout: 30_000, interval: 100 },
    );
  }
});

const object = (kind: string, name: string, spec: object): NewObject => ({
  apiVersion: 'lathe.dev/v1alpha1',
  kind,
  metadata: { name, ...(kind === 'WorkspaceClass' ? {} : { namespace: world.namespace }) },
  spec,
});
async function create(kind: string, name: string, spec: object): Promise<string> {
  const resource = RESOURCES[kind] as Resource<KubeObject>;
  return await world.client.create(resource, object(kind, name, spec), { dryRun: true }).then(
    () => 'taken',
    (error: unknown) => (error instanceof KubeError ? error.message : String(error)),
  );
}

test.for<[situation: string, kind: string, name: string, spec: object, answer: string]>([
  ['CD6: three lines are a Workspace', 'Workspace', 'w', {}, 'taken'],
  [
    'everything at once',
    'Workspace',
    'w',
    {
      class: 'c',
      displayName: 'acme / billing',
      environment: { image: 'i', resources: { cpu: '500m' }, env: [{ name: 'A', value: 'b' }] },
      files: { writable: ['/src/**'] },
      volume: { mode: 'Ephemeral' },
    },
    'taken',
  ],
  ['K4: a name of 51 characters', 'Workspace', 'w'.repeat(51), {}, 'at most 50 characters'],
  ['K4: a name with a dot', 'Workspace', 'a.b', {}, 'no dots'],
  ['K4: a Turn of 101 characters', 'Turn', 't'.repeat(101), { workspace: 'w', command: 'x' }, 'at most 100 characters'],
  [
    'CC15: a reference to a secret in env',
    'Workspace',
    'w',
    { environment: { env: [{ name: 'A', valueFrom: { secretKeyRef: { name: 's', key: 'k' } } }] } },
    'a sandbox holds no credentials',
  ],
  [
    'S9: a name of ours in env',
    'Workspace',
    'w',
    { environment: { env: [{ name: 'LATHE_TOKEN', value: 'x' }] } },
    'reserved by Lathe',
  ],
  [
    'a quantity that is none',
    'Workspace',
    'w',
    { environment: { resources: { memory: 'lots' } } },
    'environment.resources.memory',
  ],
  ['a seed without a source', 'Workspace', 'w', { seed: {} }, 'seed needs one source'],
  [
    'a seed with two sources',
    'Workspace',
    'w',
    { seed: { configMap: { name: 'a' }, workspace: { name: 'b' } } },
    'seed needs one source, and only one',
  ],
  [
    'a seed from Git',
    'Workspace',
    'w',
    { seed: { git: { url: 'https://git.example/acme/x', ref: 'feature/x' } } },
    'taken',
  ],
  [
    'a seed from Git over ssh',
    'Workspace',
    'w',
    { seed: { git: { url: 'git@git.example:acme/x.git', secretName: 's' } } },
    'taken',
  ],
  [
    'a seed from an ssh URL',
    'Workspace',
    'w',
    { seed: { git: { url: 'ssh://git@git.example:2222/acme/x' } } },
    'taken',
  ],
  [
    'S8: a password in a URL',
    'Workspace',
    'w',
    { seed: { git: { url: 'https://ada:secret@git.example/x' } } },
    'without a password',
  ],
  [
    'S8: a password in an ssh URL',
    'Workspace',
    'w',
    { seed: { git: { url: 'ssh://ada:secret@git.example/x' } } },
    'without a password',
  ],
  ['a seed from a local folder', 'Workspace', 'w', { seed: { git: { url: 'file:///etc' } } }, 'git.url must be'],
  ['a seed from a command', 'Workspace', 'w', { seed: { git: { url: 'ext::sh -c id' } } }, 'git.url must be'],
  [
    'a host that is an option',
    'Workspace',
    'w',
    { seed: { git: { url: 'ssh://-oProxyCommand=id/x' } } },
    'git.url must be',
  ],
  [
    'a user that is an option',
    'Workspace',
    'w',
    { seed: { git: { url: '-oProxyCommand=id@h:x' } } },
    'git.url must be',
  ],
  [
    'a ref that is an option',
    'Workspace',
    'w',
    { seed: { git: { url: 'https://git.example/x', ref: '--upload-pack=id' } } },
    'seed.git.ref',
  ],
  [
    'a seed from an archive',
    'Workspace',
    'w',
    { seed: { archive: { url: 'https://a.example/x.tgz', sha256: '0'.repeat(64), stripComponents: 1 } } },
    'taken',
  ],
  [
    'an archive without its hash',
    'Workspace',
    'w',
    { seed: { archive: { url: 'https://a.example/x.tgz' } } },
    'sha256',
  ],
  ['a seed from another Workspace', 'Workspace', 'w', { seed: { workspace: { name: 'a', version: 3 } } }, 'taken'],
  ['a Turn with a command', 'Turn', 't', { workspace: 'w', command: 'x' }, 'taken'],
  ['a Turn with a message', 'Turn', 't', { workspace: 'w', message: 'x' }, 'taken'],
  ['a Turn with both', 'Turn', 't', { workspace: 'w', message: 'x', command: 'x' }, 'either a message or a command'],
  ['a Turn with neither', 'Turn', 't', { workspace: 'w' }, 'either a message or a command'],
  [
    'a Sandbox that is not named after its Workspace',
    'Sandbox',
    's',
    { workspace: 'w' },
    'has the name of its Workspace',
  ],
  [
    'a class with a scripted model',
    'WorkspaceClass',
    'c',
    { defaultModel: 'm', models: [{ name: 'm', provider: 'Scripted', script: '[]' }] },
    'taken',
  ],
  [
    'a default model that is not there',
    'WorkspaceClass',
    'c',
    { defaultModel: 'x', models: [{ name: 'm', provider: 'Scripted', script: '[]' }] },
    'defaultModel must be',
  ],
  [
    'a scripted model without a script',
    'WorkspaceClass',
    'c',
    { models: [{ name: 'm', provider: 'Scripted' }] },
    'either script or scriptConfigMap',
  ],
  [
    'a real model without a key',
    'WorkspaceClass',
    'c',
    { models: [{ name: 'm', provider: 'Anthropic', model: 'x' }] },
    'needs model and apiKeySecret',
  ],
  [
    'a real model with a script',
    'WorkspaceClass',
    'c',
    { models: [{ name: 'm', provider: 'Anthropic', model: 'x', apiKeySecret: { name: 's', key: 'k' }, script: '[]' }] },
    'only a Scripted model',
  ],
])('%s', async ([, kind, name, spec, answer]) => expect(await create(kind, name, spec)).toContain(answer));

test('the spec of a Turn, the seed and the volume mode of a Workspace can not be changed', async () => {
  await world.client.create(TURNS, object('Turn', 'fixed', { workspace: 'w', command: 'x' }));
  await expect(
    world.client.mergePatch(TURNS, { namespace: world.namespace, name: 'fixed' }, { spec: { command: 'y' } }),
  ).rejects.toThrow(/can't be changed/);
  await world.client.create(
    WORKSPACES,
    object('Workspace', 'fixed', { volume: { mode: 'Ephemeral' }, seed: { configMap: { name: 'a' } } }),
  );
  const ref = { namespace: world.namespace, name: 'fixed' };
  await expect(world.client.mergePatch(WORKSPACES, ref, { spec: { volume: { mode: 'Persistent' } } })).rejects.toThrow(
    /volume.mode can't be changed/,
  );
  await expect(
    world.client.mergePatch(WORKSPACES, ref, { spec: { seed: { configMap: { name: 'b' } } } }),
  ).rejects.toThrow(/seed can't be changed/);
  await world.client.mergePatch(WORKSPACES, ref, { spec: { displayName: 'other' } });
});
