import { expect, test } from 'vitest';
import { API_VERSION } from '../../proto/live/types.ts';
import { PermanentError } from '../errors.ts';
import { discover, SUBRESOURCES } from './discovery.ts';
import { routeOf } from './routes.ts';

const METHODS = { get: ['GET', 'HEAD'], create: ['POST'], update: ['PUT'], delete: ['DELETE'] } as const;
const at = (rest: string) => `/apis/${API_VERSION}/namespaces/team/workspaces/billing/${rest}`;

test.for(Object.entries(SUBRESOURCES))(
  '%s: what discovery names is served, and nothing else',
  ([subresource, verbs]) => {
    for (const [verb, methods] of Object.entries(METHODS))
      for (const method of methods)
        if ((verbs as readonly string[]).includes(verb))
          expect(routeOf(method, at(subresource))).toMatchObject({
            namespace: 'team',
            name: 'billing',
            subresource,
            verb,
          });
        else expect(() => routeOf(method, at(subresource))).toThrow(/knows/);
    for (const method of ['PATCH', 'OPTIONS', 'TRACE']) expect(() => routeOf(method, at(subresource))).toThrow(/knows/);
  },
);

test.for<[situation: string, path: string]>([
  ['no subresource', at('')],
  ['one that is not there', at('exec2')],
  ['one of every object of the language', at('constructor')],
  ['something below a subresource', at('files/x')],
  ['another group', at('files').replace('live.lathe.dev', 'lathe.dev')],
  ['an encoded name', at('files').replace('billing', 'bil%6cing')],
  ['a parent', at('files').replace('billing', '..')],
  ['a name in capitals', at('files').replace('billing', 'Billing')],
  ['an empty name', at('files').replace('billing', '')],
])('%s is NotFound', ([, path]) => {
  expect(() => routeOf('GET', path)).toThrow(PermanentError);
  try {
    routeOf('GET', path);
  } catch (error) {
    expect(error).toMatchObject({ reason: 'NotFound' });
  }
});

test('both forms of discovery name the same subresources and verbs', () => {
  const plain = JSON.parse(discover(`/apis/${API_VERSION}`, undefined)?.body ?? '') as {
    resources: { name: string; verbs: string[] }[];
  };
  const accept = 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList';
  const aggregated = JSON.parse(discover('/apis', accept)?.body ?? '') as {
    items: { versions: { resources: { subresources: { subresource: string; verbs: string[] }[] }[] }[] }[];
  };
  const [resource] = aggregated.items[0]?.versions[0]?.resources ?? [];
  const byPlain = plain.resources.slice(1).map(({ name, verbs }) => [name.replace('workspaces/', ''), verbs]);
  expect(resource?.subresources.map(({ subresource, verbs }) => [subresource, verbs])).toEqual(byPlain);
  expect(Object.fromEntries(byPlain)).toEqual(SUBRESOURCES);
  // A list or delete here would be called by the namespace and garbage collectors.
  expect(plain.resources[0]).toMatchObject({ name: 'workspaces', verbs: [] });
});
