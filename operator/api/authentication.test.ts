import { describe, expect, test } from 'vitest';
import {
  frontProxyIdentity,
  requestHeaderConfigOf,
  type HeaderLines,
  type Identity,
  type RequestHeaderConfig,
} from './authentication.ts';

const config: RequestHeaderConfig = {
  ca: 'pem',
  allowedNames: ['front-proxy-client'],
  userHeaders: ['X-Remote-User'],
  groupHeaders: ['X-Remote-Group'],
  uidHeaders: [],
  extraPrefixes: ['X-Remote-Extra-'],
};
const name = 'front-proxy-client';
const eve = { 'x-remote-user': ['eve'] };
const nobody = { groups: [], extra: {} };
/** As Node has it: every byte a character. */
const onTheWire = (text: string) => Buffer.from(text).toString('latin1');

describe('what the front proxy says', () => {
  test.for<[situation: string, headers: HeaderLines, commonName: string | undefined, is: Identity | undefined]>([
    ['a user alone', eve, name, { user: 'eve', ...nobody }],
    ['no certificate of the CA: nobody', eve, undefined, undefined],
    ['a name that may not speak for others: nobody', eve, 'somebody', undefined],
    ['no user: nobody, whatever groups are named', { 'x-remote-group': ['system:masters'] }, name, undefined],
    ['an empty user: nobody', { 'x-remote-user': [''] }, name, undefined],
    ['a user with a comma is one user', { 'x-remote-user': ['eve, ada'] }, name, { user: 'eve, ada', ...nobody }],
    [
      'a group with a comma is one group',
      { ...eve, 'x-remote-group': ['dev, system:masters', 'ops'] },
      name,
      { user: 'eve', groups: ['dev, system:masters', 'ops'], extra: {} },
    ],
    [
      'a name beyond ASCII is what the API server calls it',
      { 'x-remote-user': [onTheWire('müller')] },
      name,
      { user: 'müller', ...nobody },
    ],
    [
      'extra keys are decoded, and taken as they are where they can not be',
      { ...eve, 'x-remote-extra-a%2fb': ['1', '2'], 'x-remote-extra-%zz': ['3'], 'x-remote-extra-__proto__': ['4'] },
      name,
      { user: 'eve', groups: [], extra: { 'a/b': ['1', '2'], '%zz': ['3'], ['__proto__']: ['4'] } },
    ],
    [
      'a uid that the API server does not vouch for is left out',
      { ...eve, 'x-remote-uid': ['u'] },
      name,
      { user: 'eve', ...nobody },
    ],
  ])('%s', ([, headers, commonName, is]) => expect(frontProxyIdentity(headers, commonName, config)).toEqual(is));

  test('a uid is read from the header that the cluster names', () => {
    const named = { ...config, uidHeaders: ['X-Remote-Uid'] };
    expect(frontProxyIdentity({ ...eve, 'x-remote-uid': ['u'] }, name, named)).toMatchObject({ uid: 'u' });
  });

  test('an empty list of names allows any under the CA', () => {
    expect(frontProxyIdentity(eve, 'anybody', { ...config, allowedNames: [] })).toMatchObject({ user: 'eve' });
  });

  test('the ConfigMap without its CA believes nobody', () => {
    expect(() => requestHeaderConfigOf({ 'requestheader-allowed-names': '[]' })).toThrow(/client-ca-file/);
  });
});
