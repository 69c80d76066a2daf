/** `npm run generate`: from the declarations to CRDs (plain and as chart templates) and reference pages. */
import { mkdir, writeFile } from 'node:fs/promises';
import { stringify } from 'yaml';
import { customResourceDefinition, type JsonSchema } from './definition.ts';
import { DEFAULTS } from './defaults.ts';
import type { Kind } from './kind.ts';
import { SANDBOX } from './sandbox.ts';
import { TURN } from './turn.ts';
import { WORKSPACE_CLASS } from './workspace-class.ts';
import { WORKSPACE_QUOTA } from './workspace-quota.ts';
import { WORKSPACE } from './workspace.ts';

const KINDS: readonly Kind[] = [WORKSPACE, TURN, SANDBOX, WORKSPACE_CLASS, WORKSPACE_QUOTA];
const HEAD = '# Generated from crds/ by npm run generate.\n';

for (const folder of ['crds/gen', 'charts/lathe/templates/crds', 'docs/reference'])
  await mkdir(folder, { recursive: true });
for (const kind of KINDS) {
  const crd = customResourceDefinition(kind);
  const yaml = stringify(crd, { lineWidth: 0, aliasDuplicateObjects: false });
  await writeFile(`crds/gen/${kind.plural}.yaml`, HEAD + yaml);
  await writeFile(`charts/lathe/templates/crds/${kind.plural}.yaml`, template(crd));
  await writeFile(`docs/reference/${kind.singular}.md`, page(kind, crd.spec.versions[0]?.schema.openAPIV3Schema ?? {}));
}
await writeFile('docs/reference/defaults.md', defaultsPage());

/** Kept when the release goes: deleting a CRD deletes every object of its kind. */
function template(crd: ReturnType<typeof customResourceDefinition>): string {
  const kept = { ...crd, metadata: { ...crd.metadata, annotations: { 'helm.sh/resource-policy': 'keep' } } };
  const yaml = stringify(kept, { lineWidth: 0, aliasDuplicateObjects: false });
  if (yaml.includes('{{')) throw new Error(`${crd.metadata.name} has {{ in it, which Helm would read as a template`);
  return `${HEAD}{{- if .Values.crds.install }}\n${yaml}{{- end }}\n`;
}

function page(kind: Kind, schema: JsonSchema): string {
  const rows = [...fields('', schema)].map(
    ([path, s]) => `| \`${path}\` | ${typeOf(s)} | ${(s.description ?? '').replaceAll('|', '\\|')} |`,
  );
  const rules = kind.rules.map((r) => `* ${r.message ?? r.rule}`);
  return [
    `# ${kind.kind}`,
    '',
    kind.description,
    '',
    `\`${kind.plural}.lathe.dev\`, v1alpha1, ${kind.scope === 'Cluster' ? 'cluster-scoped' : 'namespaced'}${kind.shortNames.length > 0 ? `, short name ${kind.shortNames.join(', ')}` : ''}.`,
    '',
    '```yaml',
    kind.example.trimEnd(),
    '```',
    '',
    '| field | type | meaning |',
    '|---|---|---|',
    ...rows,
    '',
    ...(rules.length > 0 ? ['Refused at once by the API server unless:', '', ...rules, ''] : []),
  ].join('\n');
}

function* fields(prefix: string, schema: JsonSchema): Iterable<[string, JsonSchema]> {
  for (const [name, property] of Object.entries(schema.properties ?? {})) {
    if (prefix === '' && ['apiVersion', 'kind', 'metadata'].includes(name)) continue;
    const path = prefix === '' ? name : `${prefix}.${name}`;
    yield [path, property];
    yield* fields(property.items === undefined ? path : `${path}[]`, property.items ?? property);
  }
}

function typeOf(schema: JsonSchema): string {
  if (schema.enum !== undefined) return schema.enum.join(' \\| ');
  if (schema.items !== undefined) return `${typeOf(schema.items)}[]`;
  return schema.type ?? 'any';
}

function defaultsPage(): string {
  const rows = [...flat('', DEFAULTS)].map(([path, value]) => `| ${path} | \`${value}\` |`);
  return [
    '# Defaults',
    '',
    'Where class and Workspace say nothing. Bytes and times as in the resources.',
    '',
    '| what | default |',
    '|---|---|',
    ...rows,
    '',
  ].join('\n');
}

function* flat(prefix: string, value: unknown): Iterable<[string, string]> {
  if (value === null || typeof value !== 'object' || Array.isArray(value))
    return yield [prefix, Array.isArray(value) ? value.join(' ') : String(value)];
  for (const [name, inner] of Object.entries(value)) yield* flat(prefix === '' ? name : `${prefix}.${name}`, inner);
}
