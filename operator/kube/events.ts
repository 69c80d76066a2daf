/** Events where `kubectl describe` looks. Never in the way of a reconcile, never more than a few a minute for one object. */
import type { KubeClient } from './client.ts';
import { apiVersionOf, type KubeObject, type Resource } from './types.ts';

export type EventRecorder = Readonly<{
  record(resource: Resource, about: KubeObject, type: 'Normal' | 'Warning', reason: string, message: string): void;
}>;

const EVENTS: Resource = { group: '', version: 'v1', plural: 'events', kind: 'Event', namespaced: true };
/** The same said again within this time is not news. */
const QUIET_MS = 5 * 60_000;
const REMEMBERED = 4_096;

export function createEventRecorder(
  client: KubeClient,
  component: string,
  onProblem: (error: unknown) => void,
): EventRecorder {
  const said = new Map<string, number>();
  return {
    record: (resource, about, type, reason, message) => {
      const { name, namespace, uid } = about.metadata;
      const key = `${uid}/${reason}/${message}`;
      const now = Date.now();
      if (now - (said.get(key) ?? 0) < QUIET_MS) return;
      if (said.size >= REMEMBERED) said.clear();
      said.set(key, now);
      const at = `${new Date(now).toISOString().slice(0, 19)}Z`;
      const event = {
        apiVersion: 'v1',
        kind: 'Event',
        metadata: {
          namespace: namespace ?? 'default',
          name: `${name.slice(0, 200)}.${now.toString(16)}${Math.floor(Math.random() * 65_536).toString(16)}`,
        },
        involvedObject: { apiVersion: apiVersionOf(resource), kind: resource.kind, name, namespace, uid },
        type,
        reason,
        message: message.slice(0, 1_000),
        source: { component },
        reportingComponent: component,
        firstTimestamp: at,
        lastTimestamp: at,
        count: 1,
      };
      void client.create(EVENTS, event, {}, AbortSignal.timeout(10_000)).catch(onProblem);
    },
  };
}
