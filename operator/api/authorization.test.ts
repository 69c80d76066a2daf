import { expect, test } from 'vitest';
import { TransientError } from '../errors.ts';
import type { Identity } from './authentication.ts';
import { createAuthorizer, type Attributes } from './authorization.ts';

const ada: Identity = { user: 'ada', groups: ['dev'], extra: {} };
const read: Attributes = {
  group: 'live.lathe.dev',
  resource: 'workspaces',
  subresource: 'files',
  verb: 'get',
  namespace: 'team',
  name: 'billing',
};
function reviewing(answer: { allowed: boolean | 'away' }) {
  const state = { now: 0, asked: 0 };
  const authorizer = createAuthorizer(
    async () => {
      state.asked += 1;
      if (answer.allowed === 'away') throw new TransientError('ServiceUnavailable', 'away');
      return { allowed: answer.allowed, reason: '' };
    },
    () => state.now,
  );
  return { state, authorizer };
}

test.for<[situation: string, allowed: boolean, ms: number]>([
  ['a right holds for 10 s', true, 10_000],
  ['a refusal holds for 2 s', false, 2_000],
])('%s, and is asked for again then', async ([, allowed, ms]) => {
  const { state, authorizer } = reviewing({ allowed });
  for (const now of [0, ms - 1, ms]) {
    state.now = now;
    expect(await authorizer.allows(ada, read)).toBe(allowed);
  }
  expect(state.asked).toBe(2);
});

test.for<[what: string, identity: Identity, attributes: Attributes]>([
  ['another verb', ada, { ...read, verb: 'update' }],
  ['another subresource', ada, { ...read, subresource: 'kv' }],
  ['another workspace', ada, { ...read, name: 'other' }],
  ['another namespace', ada, { ...read, namespace: 'other' }],
  ['another user', { ...ada, user: 'eve' }, read],
  ['other groups', { ...ada, groups: ['dev', 'ops'] }, read],
  ['groups that only look alike when joined', { ...ada, groups: ['dev","x'] }, read],
  ['other extra', { ...ada, extra: { scopes: ['x'] } }, read],
  ['another uid', { ...ada, uid: 'u' }, read],
])('what was answered for one says nothing of %s', async ([, identity, attributes]) => {
  const { state, authorizer } = reviewing({ allowed: true });
  await authorizer.allows(ada, read);
  await authorizer.allows(identity, attributes);
  expect(state.asked).toBe(2);
});

test('no answer is neither yes nor no: it is said, and not remembered', async () => {
  const answer: { allowed: boolean | 'away' } = { allowed: 'away' };
  const { authorizer } = reviewing(answer);
  await expect(authorizer.demand(ada, read)).rejects.toThrow(TransientError);
  answer.allowed = true;
  expect(await authorizer.allows(ada, read)).toBe(true);
});

test('many at once are one review', async () => {
  const { state, authorizer } = reviewing({ allowed: true });
  await Promise.all(Array.from({ length: 20 }, () => authorizer.allows(ada, read)));
  expect(state.asked).toBe(1);
});

test('a refusal says who can not do what, and spells out what would deceive', async () => {
  const { authorizer } = reviewing({ allowed: false });
  await expect(authorizer.demand({ ...ada, user: 'a\u202edmin' }, read)).rejects.toThrow(
    /user "a\\u\{202e\}dmin" can't get resource "workspaces\/files"/,
  );
});
