/** A CustomResourceDefinition from a declaration. Pure. */
import { z } from 'zod';
import { GROUP, VERSION, type Kind } from './kind.ts';

export type JsonSchema = {
  type?: string;
  description?: string;
  enum?: readonly string[];
  properties?: Record<string, JsonSchema>;
  items?: JsonSchema;
  required?: readonly string[];
  additionalProperties?: JsonSchema | boolean;
  [key: string]: unknown;
};

export function customResourceDefinition(kind: Kind) {
  const object: JsonSchema = {
    type: 'object',
    description: kind.description,
    required: ['spec'],
    properties: {
      apiVersion: { type: 'string' },
      kind: { type: 'string' },
      // Named so that rules on the object can see the name.
      metadata: { type: 'object', properties: { name: { type: 'string', maxLength: 253 } } },
      spec: structural(kind.spec),
      status: structural(kind.status),
    },
    ...(kind.rules.length > 0 ? { 'x-kubernetes-validations': kind.rules } : {}),
  };
  return {
    apiVersion: 'apiextensions.k8s.io/v1',
    kind: 'CustomResourceDefinition',
    metadata: { name: `${kind.plural}.${GROUP}` },
    spec: {
      group: GROUP,
      scope: kind.scope,
      names: {
        kind: kind.kind,
        listKind: `${kind.kind}List`,
        plural: kind.plural,
        singular: kind.singular,
        shortNames: kind.shortNames,
        categories: ['lathe'],
      },
      versions: [
        {
          name: VERSION,
          served: true,
          storage: true,
          schema: { openAPIV3Schema: object },
          subresources: { status: {} },
          ...(kind.selectable === undefined
            ? {}
            : { selectableFields: kind.selectable.map((jsonPath) => ({ jsonPath })) }),
          additionalPrinterColumns: kind.columns.map((column) => ({
            name: column.name,
            type: column.type,
            jsonPath: column.path,
            ...(column.wide ? { priority: 1 } : {}),
          })),
        },
      ],
    },
  };
}

/** What zod writes, less what a structural schema must not have. */
function structural(schema: z.ZodObject): JsonSchema {
  return clean(z.toJSONSchema(schema, { target: 'draft-7', unrepresentable: 'any' }) as JsonSchema);
}

function clean(schema: JsonSchema): JsonSchema {
  const { $schema: _s, propertyNames: _p, additionalProperties, properties, items, ...rest } = schema;
  const out: JsonSchema = { ...rest };
  if (out.enum !== undefined) out.type = 'string';
  if (rest['type'] === 'integer') {
    // zod bounds integers by what a number holds exactly; only bounds of ours say something.
    if (rest['maximum'] === Number.MAX_SAFE_INTEGER) delete out['maximum'];
    if (rest['minimum'] === Number.MIN_SAFE_INTEGER) delete out['minimum'];
    out['format'] = 'int64';
  }
  if (properties !== undefined)
    out.properties = Object.fromEntries(Object.entries(properties).map(([name, p]) => [name, clean(p)]));
  if (items !== undefined) out.items = clean(items);
  if (typeof additionalProperties === 'object') out.additionalProperties = clean(additionalProperties);
  return out;
}
