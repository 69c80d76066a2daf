import { expect, test } from 'vitest';
import { transport } from './push.ts';

test.for<[image: string, plainHttp: boolean]>([
  ['localhost:5000/server:1', true],
  ['127.0.0.1:5000/lathe/server:1', true],
  ['[::1]:5000/server:1', true],
  ['registry.example/lathe/server:1', false],
  ['localhost.example/server:1', false],
  ['127.0.0.1.example:5000/server:1', false],
])('%s: plain HTTP is allowed only to this machine', ([image, plainHttp]) =>
  expect(transport(image)).toEqual(plainHttp ? ['--dest-tls-verify=false'] : []),
);
