/** The chart as Helm renders it, without a cluster. */
import { fileURLToPath } from 'node:url';
import { parseAllDocuments, stringify } from 'yaml';
import { z } from 'zod';
import { binaries } from '../../cluster/binaries.ts';
import { run } from '../../cluster/run.ts';

export const CHART = fileURLToPath(new URL('../../../charts/lathe', import.meta.url));
export const NAMESPACE = 'install-here';

const containerSchema = z.looseObject({
  name: z.string(),
  image: z.string(),
  args: z.array(z.string()).optional(),
  env: z
    .array(z.object({ name: z.string(), value: z.string().optional(), valueFrom: z.unknown().optional() }))
    .default([]),
  ports: z.array(z.object({ name: z.string(), containerPort: z.number() })).default([]),
  securityContext: z.record(z.string(), z.unknown()).default({}),
  resources: z.looseObject({ limits: z.record(z.string(), z.unknown()).optional() }).optional(),
});
const podSchema = z.looseObject({
  securityContext: z.record(z.string(), z.unknown()).default({}),
  initContainers: z.array(containerSchema).default([]),
  containers: z.array(containerSchema),
  volumes: z.array(z.record(z.string(), z.unknown())).default([]),
});
const objectSchema = z.looseObject({
  apiVersion: z.string(),
  kind: z.string(),
  metadata: z.looseObject({
    name: z.string(),
    namespace: z.string().optional(),
    labels: z.record(z.string(), z.string()).default({}),
    annotations: z.record(z.string(), z.string()).default({}),
  }),
  spec: z.record(z.string(), z.unknown()).optional(),
  rules: z
    .array(
      z.object({
        apiGroups: z.array(z.string()),
        resources: z.array(z.string()),
        resourceNames: z.array(z.string()).default([]),
        verbs: z.array(z.string()),
      }),
    )
    .optional(),
});
export type Rendered = z.infer<typeof objectSchema>;
export type Pod = z.infer<typeof podSchema>;
export type Values = Readonly<Record<string, unknown>>;

/** Standard output of helm. @throws Error with what helm printed */
export async function helm(args: readonly string[], values: Values = {}): Promise<string> {
  const signal = AbortSignal.timeout(30_000);
  const { helm: program = 'helm' } = await binaries(() => undefined, signal, 'helm');
  return await run([program, ...args, '--values', '-'], signal, { input: stringify(values) });
}

/** @throws Error with what helm printed */
export async function render(values: Values = {}): Promise<readonly Rendered[]> {
  const text = await helm(['template', 'lathe', CHART, '--namespace', NAMESPACE], values);
  return parseAllDocuments(text)
    .map((document) => document.toJS() as unknown)
    .filter((object) => object !== null)
    .map((object) => objectSchema.parse(object));
}

export function find(objects: readonly Rendered[], kind: string, name: string): Rendered {
  const found = objects.find((object) => object.kind === kind && object.metadata.name === name);
  if (found === undefined) {
    const there = objects.map((object) => `${object.kind}/${object.metadata.name}`);
    throw new Error(`the chart has no ${kind}/${name}; it has ${there.join(', ')}`);
  }
  return found;
}

export function podOf(object: Rendered): Pod {
  return podSchema.parse(z.object({ template: z.object({ spec: z.unknown() }) }).parse(object.spec).template.spec);
}
