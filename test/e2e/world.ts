/** What an end-to-end test does to the cluster: apply, look, wait for a fact, look again when it does not come. */
import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, expect, inject, vi } from 'vitest';
import type { Installation } from '../installation/install.ts';
import { kubectlOf, type Tool } from '../installation/kubectl.ts';

export type Condition = Readonly<{ type: string; status: string; reason?: string; message?: string }>;
/** Any object, as far as tests look at it. */
export type Seen = Readonly<{
  metadata: Readonly<{
    name: string;
    namespace?: string;
    uid: string;
    resourceVersion: string;
    labels?: Record<string, string>;
  }>;
  spec: Readonly<Record<string, unknown>>;
  status?: Readonly<Record<string, unknown>> &
    Readonly<{ phase?: string; reason?: string; message?: string; conditions?: readonly Condition[] }>;
}>;

export type World = Readonly<{
  installation: Installation;
  kubectl: Tool;
  /** Made for this file, deleted after it, with Pod Security `restricted` enforced. */
  namespace: string;
  apply(...objects: readonly object[]): Promise<void>;
  get(kind: string, name: string, namespace?: string): Promise<Seen>;
  list(kind: string, selector?: string, namespace?: string): Promise<readonly Seen[]>;
  workspace(name: string, spec?: object): object;
  turn(name: string, spec: object): object;
  /** Waits until the turn is finished and returns it. */
  finished(name: string, timeoutMs?: number): Promise<Seen>;
  /** Waits until the object's condition says this, and returns the condition. */
  condition(kind: string, name: string, type: string, want: Partial<Condition>, timeoutMs?: number): Promise<Condition>;
}>;

/** Call at the top of a file. */
export function useWorld(title: string): World {
  const installation = inject('installation');
  const kubectl = kubectlOf(installation.cluster);
  const namespace = `e2e-${title}-${randomBytes(3).toString('hex')}`;

  beforeAll(async () => {
    const labels = { 'pod-security.kubernetes.io/enforce': 'restricted' };
    await world.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name: namespace, labels } });
  });
  afterAll(async () => {
    await kubectl.run(['delete', 'namespace', namespace, '--ignore-not-found', '--wait=false']);
  });

  const world: World = {
    installation,
    kubectl,
    namespace,
    apply: async (...objects) => {
      await kubectl.run(['apply', '-f', '-'], {
        input: JSON.stringify({ apiVersion: 'v1', kind: 'List', items: objects }),
      });
    },
    get: (kind, name, where = namespace) => kubectl.json<Seen>(['-n', where, 'get', kind, name]),
    list: async (kind, selector, where = namespace) => {
      const found = await kubectl.json<{ items: Seen[] }>([
        '-n',
        where,
        'get',
        kind,
        ...(selector === undefined ? [] : ['-l', selector]),
      ]);
      return found.items;
    },
    workspace: (name, spec = {}) => ({
      apiVersion: 'lathe.dev/v1alpha1',
      kind: 'Workspace',
      metadata: { name, namespace },
      spec: { volume: { mode: 'Ephemeral' }, ...spec },
    }),
    turn: (name, spec) => ({ apiVersion: 'lathe.dev/v1alpha1', kind: 'Turn', metadata: { name, namespace }, spec }),
    finished: async (name, timeoutMs = 90_000) => {
      let seen: Seen | undefined;
      await expect
        .poll(
          async () => {
            seen = await world.get('turn', name);
            return (
              conditionOf(seen, 'Finished')?.status ??
              `no condition Finished; phase ${seen.status?.phase ?? 'none'}: ${seen.status?.message ?? ''}`
            );
          },
          { timeout: timeoutMs, interval: 250 },
        )
        .toBe('True');
      if (seen === undefined) throw new Error(`turn ${name} was never seen`);
      return seen;
    },
    condition: async (kind, name, type, want, timeoutMs = 60_000) => {
      let found: Condition | undefined;
      // Not expect.poll: this is waited for before the tests too.
      await vi.waitFor(
        async () => {
          found = conditionOf(await world.get(kind, name), type);
          expect(found).toMatchObject(want);
        },
        { timeout: timeoutMs, interval: 250 },
      );
      if (found === undefined) throw new Error(`${kind} ${name} never had a condition ${type}`);
      return found;
    },
  };
  return world;
}

/** For classes of a test: several fit on a small machine. */
export const SMALL = { resources: { default: { cpu: '150m', memory: '256Mi', disk: '256Mi' } } } as const;

export function conditionOf(object: Seen, type: string): Condition | undefined {
  return object.status?.conditions?.find((condition) => condition.type === type);
}
