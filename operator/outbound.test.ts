import { describe, expect, test } from 'vitest';
import { createOutbound, isPublic } from './outbound.ts';

test.for([
  ['140.82.121.4', true],
  ['127.0.0.1', false],
  ['10.1.2.3', false],
  ['100.100.100.200', false],
  ['169.254.169.254', false],
  ['168.63.129.16', false],
  ['172.31.255.255', false],
  ['172.32.0.1', true],
  ['0.0.0.0', false],
  ['255.255.255.255', false],
  ['2606:50c0:8000::153', true],
  ['::1', false],
  ['::', false],
  ['fe80::1', false],
  ['fd00:ec2::254', false],
  ['::ffff:10.0.0.1', false],
  ['::ffff:140.82.121.4', false],
  ['2002:0a00:0001::', false],
  ['2001:0:4136:e378::', false],
  ['64:ff9b::8c52:7904', true],
  ['64:ff9b::a9fe:a9fe', false],
  ['64:ff9b::10.0.0.1', false],
  ['64:ff9b::', false],
  ['not an address', false],
] as const)('S6: %s is public: %s', ([address, is]) => expect(isPublic(address)).toBe(is));

describe('a host', () => {
  const names: Readonly<Record<string, readonly string[]>> = {
    'git.example': ['140.82.121.4'],
    'inside.example': ['10.0.0.7'],
    'mixed.example': ['140.82.121.4', '169.254.169.254'],
  };
  const lookup = async (host: string) =>
    names[host] ?? Promise.reject(Object.assign(new Error('no'), { code: 'ENOTFOUND' }));
  const of = (...listed: string[]) => createOutbound(listed, lookup);

  test('with a public address is answered with it', async () => {
    expect(await of().resolve('git.example')).toEqual(['140.82.121.4']);
    expect(await of().resolve('GIT.example.')).toEqual(['140.82.121.4']);
  });
  test.for(['inside.example', 'mixed.example', '127.0.0.1', '[::1]', '10.0.0.7'])(
    'S6: %s is refused, also when only one of its addresses is not public',
    (host) => expect(of().resolve(host)).rejects.toMatchObject({ name: 'PermanentError', reason: 'Forbidden' }),
  );
  test('that is listed by name, address or network may be called', async () => {
    expect(await of('inside.example').resolve('inside.example')).toEqual(['10.0.0.7']);
    expect(await of('10.0.0.0/24').resolve('inside.example')).toEqual(['10.0.0.7']);
    expect(await of('fd00::/8').resolve('[fd00::7]')).toEqual(['fd00::7']);
    expect(await of('127.0.0.1').resolve('127.0.0.1')).toEqual(['127.0.0.1']);
    await expect(of('10.0.1.0/24').resolve('inside.example')).rejects.toThrow('resolves to 10.0.0.7');
  });
  test('only a listed one may be called without TLS', () => {
    expect(of('inside.example').isListed('inside.example')).toBe(true);
    expect(of('10.0.0.0/8').isListed('10.0.0.7')).toBe(true);
    expect(of().isListed('git.example')).toBe(false);
  });
  test('that is not known is for later', () =>
    expect(of().resolve('gone.example')).rejects.toMatchObject({ name: 'TransientError', message: /ENOTFOUND/ }));
});
