/** Who may ask the live API, and what is said to those who may not. */
import { describe, expect, test } from 'vitest';
import { issueLeaf, newAuthority } from '../../../operator/controllers/certificate-authority.ts';
import { useApi } from './world.ts';

const world = useApi();
const files = (w: { namespace: string; name: string }) =>
  `/apis/live.lathe.dev/v1alpha1/namespaces/${w.namespace}/workspaces/${w.name}/files`;

describe('who asks', () => {
  test('the front proxy says who, with its certificate', async () => {
    const w = await world.workspace();
    const seen: unknown[] = [];
    world.allows = (identity) => seen.push(identity) > 0;
    const headers = { 'x-remote-user': 'eve', 'x-remote-group': 'a', 'x-remote-extra-scopes%2fx': 'y' };
    expect((await world.askAggregated(files(w), headers, world.frontProxy.client)).code).toBe(200);
    expect(seen).toEqual([{ user: 'eve', groups: ['a'], extra: { 'scopes/x': ['y'] } }]);
    world.allows = () => true;
  });

  test('a group or user with a comma in its name is one, not several', async () => {
    const w = await world.workspace();
    const seen: unknown[] = [];
    world.allows = ({ user, groups }) => seen.push([user, groups]) > 0;
    const headers = { 'x-remote-user': 'eve, x', 'x-remote-group': 'dev, system:masters' };
    expect((await world.askAggregated(files(w), headers, world.frontProxy.client)).code).toBe(200);
    expect(seen).toEqual([['eve, x', ['dev, system:masters']]]);
    world.allows = () => true;
  });

  test('without a certificate, or with one of another authority or name, X-Remote-User is worth nothing', async () => {
    const w = await world.workspace();
    const foreign = await newAuthority(new Date());
    const named = (authority: typeof foreign, commonName: string) =>
      issueLeaf(authority, { commonName, names: [commonName] }, new Date());
    const clients = [
      undefined,
      await named(foreign, 'front-proxy-client'),
      await named(world.frontProxy.ca, 'somebody-else'),
    ];
    for (const client of clients)
      expect((await world.askAggregated(files(w), { 'x-remote-user': 'system:admin' }, client)).code).toBe(401);
  });

  test('directly a token says who, and X-Remote-User is worth nothing', async () => {
    const w = await world.workspace();
    const users: string[] = [];
    world.allows = ({ user }) => users.push(user) > 0;
    const headers = { 'x-remote-user': 'system:admin' };
    expect((await world.ask('GET', w, 'files', { headers })).code).toBe(200);
    expect(users).toEqual(['ada']);
    world.allows = () => true;
    expect((await world.ask('GET', w, 'files', { headers: { ...headers, authorization: 'Basic YTpi' } })).code).toBe(
      401,
    );
  });
});

describe('what they may', () => {
  test('each subresource and verb is asked for by itself; a refusal names user, verb and resource', async () => {
    const w = await world.workspace();
    world.allows = (_, { verb, subresource }) => verb === 'get' && subresource === 'files';
    expect((await world.ask('GET', w, 'files')).code).toBe(200);
    for (const [method, path] of [
      ['PUT', 'files'],
      ['DELETE', 'files'],
      ['POST', 'files'],
      ['GET', 'archive'],
      ['POST', 'restore'],
      ['GET', 'kv'],
    ] as const)
      expect((await world.ask(method, w, path, { user: 'mallory' })).json()).toMatchObject({
        kind: 'Status',
        reason: 'Forbidden',
        code: 403,
        message: expect.stringContaining('user "mallory" can\'t') as unknown,
      });
    world.allows = () => true;
  });

  test('a workspace that is not there is told only to those who might see it', async () => {
    const nowhere = { namespace: 'team', name: 'nowhere' };
    world.allows = ({ user }) => user !== 'mallory';
    expect((await world.ask('GET', nowhere, 'files', { user: 'zoe' })).json()).toMatchObject({
      reason: 'NotFound',
      code: 404,
    });
    expect((await world.ask('GET', nowhere, 'files', { user: 'mallory' })).code).toBe(403);
    world.allows = () => true;
  });

  test('deletions that are held for others are done for those who may approve', async () => {
    const w = await world.workspace();
    const tar = (await import('node:child_process')).execFileSync('bash', [
      '-c',
      'd=$(mktemp -d); for i in $(seq 40); do echo $i > $d/$i; done; tar -C $d -cf - .; rm -r $d',
    ]);
    await world.ask('PUT', w, 'archive', { body: tar, query: { prefix: '/d' } });
    world.allows = (_, { verb }) => verb !== 'approve';
    const remove = (user: string) =>
      world.ask('DELETE', w, 'files', { query: { path: '/d', recursive: 'true' }, user });
    expect((await remove('author')).json()).toMatchObject({ reason: 'DeletionsHeld', code: 409 });
    world.allows = () => true;
    expect((await remove('approver')).json()).toMatchObject({ committed: true, files: { deleted: 40 } });
  });
});

describe('discovery', () => {
  test('is constant, needs nobody and no database, in both forms', async () => {
    const plain = await world.askAggregated('/apis/live.lathe.dev/v1alpha1', {});
    expect(plain.json()).toMatchObject({ kind: 'APIResourceList', groupVersion: 'live.lathe.dev/v1alpha1' });
    const accept = 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json';
    const aggregated = await world.askAggregated('/apis', { accept });
    expect(aggregated.json()).toMatchObject({ kind: 'APIGroupDiscoveryList' });
    expect((await world.askAggregated('/openapi/v3', {})).json()).toHaveProperty('paths');
  });

  test('what is not there is NotFound, what can not be done MethodNotAllowed', async () => {
    const w = await world.workspace();
    expect((await world.ask('GET', w, 'nothing')).code).toBe(404);
    expect((await world.ask('GET', w, '/apis/live.lathe.dev/v1alpha1/namespaces/a%2e/workspaces/b/files')).code).toBe(
      404,
    );
    expect((await world.ask('DELETE', w, 'versions')).code).toBe(405);
    expect(
      (await world.ask('PUT', w, 'files', { query: { path: '/a' }, headers: { 'content-length': String(9 << 20) } }))
        .code,
    ).toBe(413);
  });
});

describe('what nobody of ours would send', () => {
  const cursor = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url');
  test.for<[path: string, query: Record<string, string>]>([
    ['files', { continue: 'x' }],
    ['files', { continue: cursor({ version: 1.5, after: '' }) }],
    ['files', { continue: cursor({ version: 'x', after: 'y' }) }],
    ['files', { continue: cursor({ version: 1, after: 'a\0b' }) }],
    ['files', { continue: cursor([]) }],
    ['files', { version: '-1' }],
    ['files', { limit: 'x' }],
    ['versions', { continue: cursor({ before: null }) }],
    ['diff', { continue: cursor({ after: 7 }) }],
    ['diff', { format: 'xml' }],
    ['kv', { prefix: 'a\0b' }],
    ['kv', { key: '' }],
  ])('%s %j is a BadRequest', async ([path, query]) => {
    const w = await world.workspace();
    expect((await world.ask('GET', w, path, { query })).json()).toMatchObject({ code: 400 });
  });

  test('uploads that are begun and never completed have an end', async () => {
    const w = await world.workspace();
    const begin = async () => (await world.ask('POST', w, 'files', { query: { path: '/a', uploads: 'true' } })).code;
    const codes = [];
    for (let i = 0; i < 33; i += 1) codes.push(await begin());
    expect(codes).toEqual([...Array<number>(32).fill(201), 429]);
  });
});
