/** WorkspaceQuota: what the Workspaces of a namespace may use together. */
import { z } from 'zod';
import type { Kind } from './kind.ts';
import { conditions, observedGeneration, quantity } from './shapes.ts';

export const workspaceQuotaSpec = z.object({
  hard: z
    .object({
      storedBytes: quantity(
        'Bytes of all files at their heads, however often the same content is there. A change beyond it is refused with QuotaExceeded.',
      ).optional(),
    })
    .meta({ description: 'As in a ResourceQuota. Of several objects in a namespace the lowest holds.' }),
});

export const workspaceQuotaStatus = z.object({
  observedGeneration,
  conditions: conditions.optional(),
  hard: z.object({ storedBytes: z.string().optional() }).optional(),
  used: z.object({ storedBytes: z.string().optional() }).optional(),
});

export const WORKSPACE_QUOTA: Kind = {
  kind: 'WorkspaceQuota',
  plural: 'workspacequotas',
  singular: 'workspacequota',
  shortNames: ['wsq'],
  scope: 'Namespaced',
  description:
    'What the Workspaces of a namespace may use together. Written by who runs the cluster, read by the namespace. CPU, memory and volumes stay with the ResourceQuota.',
  example:
    'apiVersion: lathe.dev/v1alpha1\nkind: WorkspaceQuota\nmetadata: { name: team-a, namespace: team-a }\nspec: { hard: { storedBytes: 10Gi } }\n',
  spec: workspaceQuotaSpec,
  status: workspaceQuotaStatus,
  columns: [
    { name: 'Used', type: 'string', path: '.status.used.storedBytes' },
    { name: 'Hard', type: 'string', path: '.status.hard.storedBytes' },
    { name: 'Age', type: 'date', path: '.metadata.creationTimestamp' },
  ],
  rules: [],
};
