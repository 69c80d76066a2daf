/** Who may ask the live API, and what is said to those who may not. */
import { Agent } from 'node:https';
import { connect } from 'node:net';
import { describe, expect, test } from 'vitest';
import { issueLeaf, newAuthority } from '../../../operator/controllers/certificate-authority.ts';
import { TransientError } from '../../../operator/errors.ts';
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

  test('a connection that is older than the authority of today is not believed any more', async () => {
    const w = await world.workspace();
    const agent = new Agent({ keepAlive: true, maxSockets: 1 });
    const ask = () => world.askAggregated(files(w), { 'x-remote-user': 'eve' }, world.frontProxy.client, agent);
    const before = world.requestHeader;
    try {
      expect((await ask()).code).toBe(200);
      world.requestHeader = { ...before, ca: (await newAuthority(new Date())).certificate };
      world.api.reload();
      expect((await ask()).code).toBe(401);
      world.requestHeader = { ...before, ca: `${world.requestHeader.ca}\n${before.ca}` };
      world.api.reload();
      expect((await ask()).code).toBe(200);
    } finally {
      world.requestHeader = before;
      world.api.reload();
      agent.destroy();
    }
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

describe('connections', () => {
  test.for(['direct', 'aggregated'] as const)('%s: of one address there are at most 200', async (way) => {
    const port = way === 'direct' ? world.api.directPort : world.api.aggregatedPort;
    const w = await world.workspace();
    const sockets = Array.from({ length: 205 }, () =>
      connect({ host: '127.0.0.1', port, localAddress: '127.0.0.2' }).on('error', () => undefined),
    );
    try {
      const closed = () => sockets.filter((socket) => socket.closed).length;
      await expect.poll(closed).toBe(5);
      // Others come in meanwhile.
      expect((await world.ask('GET', w, 'files')).code).toBe(200);
      expect((await world.askAggregated(files(w), { 'x-remote-user': 'eve' }, world.frontProxy.client)).code).toBe(200);
      expect(closed()).toBe(5);
    } finally {
      for (const socket of sockets) socket.destroy();
    }
  });

  test('of the API server there are more', async () => {
    const w = await world.workspace();
    const agent = new Agent({ keepAlive: true, maxSockets: 300, maxFreeSockets: 300 });
    const codes = new Set<number>();
    try {
      // Held open by answers that wait for their reviews.
      let held = 0;
      let go = (): void => undefined;
      const all = new Promise<void>((resolve) => (go = resolve));
      world.allows = async () => {
        if ((held += 1) === 250) go();
        await all;
        return true;
      };
      for (let batch = 0; batch < 5; batch += 1) {
        const asked = Array.from({ length: 50 }, (_, i) =>
          world.askAggregated(files(w), { 'x-remote-user': `u${batch}-${i}` }, world.frontProxy.client, agent),
        );
        for (const one of asked) void one.then(({ code }) => codes.add(code)).catch(() => codes.add(0));
        await expect.poll(() => held, { timeout: 10_000 }).toBe((batch + 1) * 50);
      }
      await expect.poll(() => [...codes]).toEqual([200]);
    } finally {
      world.allows = () => true;
      agent.destroy();
    }
  });
});

describe('what they may', () => {
  test('nobody may anything while the API server has no answer, and is told to ask again', async () => {
    const w = await world.workspace();
    world.allows = () => {
      throw new TransientError('ServiceUnavailable', 'no answer');
    };
    const answer = await world.ask('GET', w, 'files', { user: 'unheard' });
    expect(answer.json()).toMatchObject({ reason: 'ServiceUnavailable', code: 503 });
    expect(answer.headers['retry-after']).toBe('1');
    world.allows = () => true;
  });

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
    expect((await world.askAggregated('/version', {})).json()).toHaveProperty('gitVersion');
  });

  test('what can not be read is the fault of who asks', async () => {
    const w = await world.workspace();
    expect((await world.ask('GET', w, '//')).code).toBe(404);
    expect((await world.ask('GET', w, '//[')).code).toBeLessThan(500);
    const cursor = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url');
    for (const [path, value] of [
      ['files', { version: 'x', after: '' }],
      ['files', { version: 1.5, after: '' }],
      ['files', { version: 0, after: 7 }],
      ['versions', { before: 'x' }],
      ['diff', { after: '/a' }],
      ['kv', []],
    ] as const)
      expect((await world.ask('GET', w, path, { query: { continue: cursor(value) } })).json(), path).toMatchObject({
        reason: 'BadRequest',
        code: 400,
      });
    const later = cursor({ version: 9, after: '' });
    expect((await world.ask('GET', w, 'files', { query: { continue: later } })).json()).toMatchObject({ code: 404 });
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
});
