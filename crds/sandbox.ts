/** Sandbox: the pod of a Workspace, as people see it. The operator makes it. */
import { z } from 'zod';
import type { Kind } from './kind.ts';
import { conditions, objectName, observedGeneration } from './shapes.ts';

export const sandboxSpec = z.object({
  workspace: objectName('The Workspace, of the same namespace and the same name as this object.'),
  operatingMode: z
    .enum(['Running', 'Suspended'])
    .meta({
      description:
        'Suspended: no pod, files stay. Running (the default): a pod when a command needs one, or at once if a person made this object.',
    })
    .optional(),
});

export const sandboxStatus = z.object({
  observedGeneration,
  conditions: conditions.optional(),
  phase: z.enum(['Pending', 'Starting', 'Running', 'Suspended']).optional(),
  pod: z.string().optional(),
  node: z.string().optional(),
  syncedVersion: z.int().optional(),
  shape: z.object({ image: z.string(), cpu: z.string(), memory: z.string() }).optional(),
});

export const SANDBOX: Kind = {
  kind: 'Sandbox',
  plural: 'sandboxes',
  singular: 'sandbox',
  shortNames: ['sb'],
  scope: 'Namespaced',
  description: 'The pod in which commands of a Workspace run: a view of its files that can be thrown away.',
  example:
    'apiVersion: lathe.dev/v1alpha1\nkind: Sandbox\nmetadata: { name: billing, namespace: team-a }\nspec: { workspace: billing, operatingMode: Suspended }\n',
  spec: sandboxSpec,
  status: sandboxStatus,
  columns: [
    { name: 'Workspace', type: 'string', path: '.spec.workspace' },
    { name: 'Phase', type: 'string', path: '.status.phase' },
    { name: 'Pod', type: 'string', path: '.status.pod' },
    { name: 'Age', type: 'date', path: '.metadata.creationTimestamp' },
    { name: 'Node', type: 'string', path: '.status.node', wide: true },
    { name: 'Message', type: 'string', path: '.status.conditions[?(@.type=="Ready")].message', wide: true },
  ],
  selectable: ['.spec.workspace', '.status.phase'],
  rules: [
    { rule: 'self.spec.workspace == self.metadata.name', message: 'a Sandbox has the name of its Workspace' },
    { rule: 'self.spec.workspace == oldSelf.spec.workspace', message: "spec.workspace can't be changed" },
  ],
};
