/** What the API is, said without asking anybody: discovery that fails makes the deletion of every namespace hang. */
import manifest from '../../package.json' with { type: 'json' };
import { API_VERSION, GROUP, VERSION } from '../../proto/live/types.ts';

/** Subresources of a workspace and the RBAC verbs that they know. */
export const SUBRESOURCES = {
  files: ['get', 'create', 'update', 'delete'],
  archive: ['get', 'update'],
  versions: ['get'],
  diff: ['get'],
  restore: ['create'],
  export: ['get'],
  import: ['create', 'update'],
  kv: ['get', 'update', 'delete'],
  log: ['get'],
} as const satisfies Readonly<Record<string, readonly string[]>>;
export type Subresource = keyof typeof SUBRESOURCES;

const VERSION_REF = { groupVersion: API_VERSION, version: VERSION };
const APIGROUP = {
  kind: 'APIGroup',
  apiVersion: 'v1',
  name: GROUP,
  versions: [VERSION_REF],
  preferredVersion: VERSION_REF,
};
const RESOURCES = {
  kind: 'APIResourceList',
  apiVersion: 'v1',
  groupVersion: API_VERSION,
  resources: [
    // Nothing can be listed or deleted here, so the namespace controller has nothing to do either.
    { name: 'workspaces', singularName: 'workspace', namespaced: true, kind: 'Workspace', verbs: [] },
    ...Object.entries(SUBRESOURCES).map(([name, verbs]) => ({
      name: `workspaces/${name}`,
      singularName: '',
      namespaced: true,
      kind: 'Workspace',
      verbs,
    })),
  ],
};
const AGGREGATED = {
  kind: 'APIGroupDiscoveryList',
  apiVersion: 'apidiscovery.k8s.io/v2',
  metadata: {},
  items: [
    {
      metadata: { name: GROUP, creationTimestamp: null },
      versions: [
        {
          version: VERSION,
          freshness: 'Current',
          resources: [
            {
              resource: 'workspaces',
              responseKind: { group: GROUP, version: VERSION, kind: 'Workspace' },
              scope: 'Namespaced',
              singularResource: 'workspace',
              verbs: [],
              subresources: Object.entries(SUBRESOURCES).map(([subresource, verbs]) => ({
                subresource,
                responseKind: { group: GROUP, version: VERSION, kind: 'Workspace' },
                verbs,
              })),
            },
          ],
        },
      ],
    },
  ],
};
const AGGREGATED_TYPE = 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList';

type Answer = Readonly<{ type: string; body: string }>;
const json = (value: unknown, type = 'application/json'): Answer => ({ type, body: JSON.stringify(value) });

const OPENAPI_PATH = `/openapi/v3/apis/${API_VERSION}`;
const WORKSPACE_PATH = `/apis/${API_VERSION}/namespaces/{namespace}/workspaces/{name}`;
const HTTP: Readonly<Record<string, string>> = { get: 'get', create: 'post', update: 'put', delete: 'delete' };
const OPENAPI = json({
  openapi: '3.0.0',
  info: { title: 'Lathe live API', version: VERSION },
  paths: Object.fromEntries(
    Object.entries(SUBRESOURCES).map(([subresource, verbs]) => [
      `${WORKSPACE_PATH}/${subresource}`,
      {
        parameters: ['namespace', 'name'].map((name) => ({
          name,
          in: 'path',
          required: true,
          schema: { type: 'string' },
        })),
        ...Object.fromEntries(
          verbs.map((verb) => [
            HTTP[verb] ?? verb,
            {
              operationId: `${verb}Workspace${subresource[0]?.toUpperCase()}${subresource.slice(1)}`,
              responses: { default: { description: 'docs/reference/live-api.md' } },
              'x-kubernetes-action': verb,
              'x-kubernetes-group-version-kind': { group: GROUP, version: VERSION, kind: 'Workspace' },
            },
          ]),
        ),
      },
    ]),
  ),
  components: { schemas: {} },
});
const OPENAPI_INDEX = json({ paths: { [`apis/${API_VERSION}`]: { serverRelativeURL: OPENAPI_PATH } } });
const OPENAPI_V2 = json({ swagger: '2.0', info: { title: 'Lathe live API', version: VERSION }, paths: {} });
const GROUPS = json({ kind: 'APIGroupList', apiVersion: 'v1', groups: [APIGROUP] });
const GROUP_ANSWER = json(APIGROUP);
const RESOURCES_ANSWER = json(RESOURCES);
const VERSION_ANSWER = json({ gitVersion: `v${manifest.version}`, platform: `${process.platform}/${process.arch}` });
const AGGREGATED_ANSWER = json(AGGREGATED, AGGREGATED_TYPE);

/** Undefined: not a path of discovery. */
export function discover(path: string, accept: string | undefined): Answer | undefined {
  switch (path) {
    case '/apis':
      return accept?.includes('as=APIGroupDiscoveryList') === true && accept.includes('v=v2;')
        ? AGGREGATED_ANSWER
        : GROUPS;
    case `/apis/${GROUP}`:
      return GROUP_ANSWER;
    case `/apis/${API_VERSION}`:
      return RESOURCES_ANSWER;
    case '/openapi/v3':
      return OPENAPI_INDEX;
    case OPENAPI_PATH:
      return OPENAPI;
    case '/openapi/v2':
      return OPENAPI_V2;
    case '/version':
      return VERSION_ANSWER;
    case '/healthz':
    case '/livez':
    case '/readyz':
      return { type: 'text/plain; charset=utf-8', body: 'ok' };
    default:
      return undefined;
  }
}
