/** Who sandboxes of a class may speak to: the turn controller, and nobody speaks to them. Pure. */
import { createHash } from 'node:crypto';
import type { NewObject } from '../kube/types.ts';
import type { Settings } from './deps.ts';
import { classLabel } from './pod.ts';
import { LABELS, MANAGER } from './resources.ts';

export function networkPolicy(namespace: string, className: string, settings: Settings): NewObject {
  const hash = createHash('sha256').update(className).digest('hex').slice(0, 10);
  return {
    apiVersion: 'networking.k8s.io/v1',
    kind: 'NetworkPolicy',
    metadata: {
      name: `lathe-${hash}`,
      namespace,
      labels: { [LABELS.managedBy]: MANAGER },
      annotations: { [LABELS.class]: className },
    },
    spec: {
      podSelector: { matchLabels: { [LABELS.managedBy]: MANAGER, [LABELS.class]: classLabel(className) } },
      policyTypes: ['Ingress', 'Egress'],
      ingress: [],
      egress: [
        {
          to: [
            {
              namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': settings.namespace } },
              podSelector: {
                matchLabels: { 'app.kubernetes.io/name': 'lathe', 'app.kubernetes.io/component': 'turns' },
              },
            },
          ],
          ports: [{ protocol: 'TCP', port: settings.sandboxPort }],
        },
      ],
    },
  };
}
