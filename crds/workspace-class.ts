/** WorkspaceClass: what a platform team allows. Cluster-scoped; one is the default by annotation, as with StorageClass. */
import { z } from 'zod';
import type { Kind } from './kind.ts';
import {
  conditions,
  duration,
  files,
  globs,
  listMap,
  objectName,
  observedGeneration,
  resources,
  rules,
  sandbox,
  text,
  volume,
} from './shapes.ts';

export const DEFAULT_CLASS_ANNOTATION = 'lathe.dev/is-default-class';
const keyOf = (description: string) =>
  z
    .object({
      name: objectName('Name, in the namespace that Lathe is installed in.'),
      key: text('Key in it.', 253).min(1),
    })
    .meta({ description });

const model = z
  .object({
    name: text('What Workspaces and people call it.', 63).min(1),
    provider: z
      .enum(['Anthropic', 'Scripted'])
      .meta({ description: 'Scripted replies from a script: deterministic, for tests and examples.' }),
    model: text("The provider's name of the model.", 128).min(1).optional(),
    baseURL: text("Of the Messages API; absent: the provider's own.", 512)
      .regex(/^https?:\/\//)
      .optional(),
    contextWindow: z.int().min(1_000).max(100_000_000).meta({ description: 'Tokens.' }).optional(),
    maxOutputTokens: z.int().min(1).max(1_000_000).meta({ description: 'Tokens of one reply.' }).optional(),
    apiKeySecret: keyOf('Where the key is. It is read by the turn controller and goes nowhere else.').optional(),
    script: text('Replies as a YAML list: {text, tools: [{command}]}.', 65_536).min(1).optional(),
    scriptConfigMap: keyOf('Where the script is.').optional(),
  })
  .meta(
    rules(
      {
        rule: "self.provider != 'Scripted' || has(self.script) != has(self.scriptConfigMap)",
        message: 'a Scripted model has either script or scriptConfigMap',
      },
      {
        rule: "self.provider == 'Scripted' || (has(self.model) && has(self.apiKeySecret))",
        message: 'this provider needs model and apiKeySecret',
      },
      {
        rule: "self.provider == 'Scripted' || (!has(self.script) && !has(self.scriptConfigMap))",
        message: 'only a Scripted model has a script',
      },
    ),
  );

export const workspaceClassSpec = z.object({
  allowedNamespaces: z
    .array(z.string().min(1).max(63))
    .max(256)
    .meta({
      description: 'Namespaces whose Workspaces may use this class; absent: all.',
      'x-kubernetes-list-type': 'set',
    })
    .optional(),
  models: z
    .array(model)
    .max(32)
    .meta({ description: 'Models that turns may use.', ...listMap('name') })
    .optional(),
  defaultModel: text('Name of one of models.', 63).min(1).optional(),
  images: z
    .object({
      default: text('Image of Workspaces that name none; absent: ours.', 512).min(1).optional(),
      allowed: globs('Globs over image names that Workspaces may ask for; absent: only the default.').optional(),
    })
    .meta({ description: 'Images that commands may run in.' })
    .optional(),
  resources: z
    .object({
      default: resources('What a Workspace gets that asks for nothing.').optional(),
      max: resources('What a Workspace may ask for at most.').optional(),
    })
    .optional(),
  runtimeClassName: objectName('RuntimeClass of the pods (gVisor, Kata).').optional(),
  userNamespaces: z
    .enum(['Required', 'Off'])
    .meta({ description: 'Required: pods get a user namespace of their own.' })
    .optional(),
  nodeSelector: z
    .record(z.string().max(316), z.string().max(63))
    .meta({ description: 'Of the pods.', maxProperties: 32 })
    .optional(),
  tolerations: z
    .array(
      z.object({
        key: z.string().max(316).optional(),
        operator: z.enum(['Exists', 'Equal']).optional(),
        value: z.string().max(63).optional(),
        effect: z.enum(['NoSchedule', 'PreferNoSchedule', 'NoExecute']).optional(),
      }),
    )
    .max(32)
    .meta({ description: 'Of the pods.', 'x-kubernetes-list-type': 'atomic' })
    .optional(),
  priorityClassName: objectName('Of the pods.').optional(),
  podLabels: z
    .record(z.string().max(316), z.string().max(63))
    .meta({ description: 'Added to the pods; ours win.', maxProperties: 32 })
    .optional(),
  volume: volume('What a Workspace gets that asks for nothing.').optional(),
  files: files('Ceilings; ignored is added to what a Workspace ignores.').optional(),
  limits: z
    .object({
      steps: z.int().min(1).max(10_000).meta({ description: 'Of a turn at most.' }).optional(),
      commandTimeout: duration('Of a command at most.').optional(),
    })
    .meta({ description: 'Ceilings of turns.' })
    .optional(),
  sandbox: sandbox('Ceilings.').optional(),
  runtimeInjection: z
    .enum(['Auto', 'ImageVolume'])
    .meta({
      description:
        'How our runtime gets into the pod. Auto: as an image volume, which needs Kubernetes 1.35 (or the gate).',
    })
    .optional(),
});

export const workspaceClassStatus = z.object({ observedGeneration, conditions: conditions.optional() });

export const WORKSPACE_CLASS: Kind = {
  kind: 'WorkspaceClass',
  plural: 'workspaceclasses',
  singular: 'workspaceclass',
  shortNames: ['wsc'],
  scope: 'Cluster',
  description: 'What a platform team allows Workspaces: models, images, sizes, ceilings.',
  example: `apiVersion: lathe.dev/v1alpha1\nkind: WorkspaceClass\nmetadata: { name: small, annotations: { ${DEFAULT_CLASS_ANNOTATION}: "true" } }\nspec: { resources: { default: { cpu: 500m, memory: 1Gi } } }\n`,
  spec: workspaceClassSpec,
  status: workspaceClassStatus,
  columns: [
    { name: 'Default', type: 'string', path: '.metadata.annotations.lathe\\.dev/is-default-class' },
    { name: 'Ready', type: 'string', path: '.status.conditions[?(@.type=="Ready")].status' },
    { name: 'Model', type: 'string', path: '.spec.defaultModel' },
    { name: 'Age', type: 'date', path: '.metadata.creationTimestamp' },
  ],
  rules: [
    {
      rule: '!has(self.spec.defaultModel) || (has(self.spec.models) && self.spec.models.exists(m, m.name == self.spec.defaultModel))',
      message: 'spec.defaultModel must be the name of one of spec.models',
    },
  ],
};
