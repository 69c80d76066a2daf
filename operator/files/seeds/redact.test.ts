import { expect, test } from 'vitest';
import { redact } from './redact.ts';

const SECRET = 'p@ss/w0rd+with=odd&bytes';
test.for<[form: string, said: string]>([
  ['as it is', SECRET],
  ['as in a URL', encodeURIComponent(SECRET)],
  ['as base64', Buffer.from(SECRET).toString('base64')],
  ['as base64 of a URL', Buffer.from(SECRET).toString('base64url')],
])('S8: a credential %s is not shown', ([, form]) => {
  expect(redact(`fatal: https://ada:${form}@git.example/ is wrong`, [SECRET])).toBe(
    'fatal: https://ada:[redacted]@git.example/ is wrong',
  );
});

test('S8: of a key of several lines, no line is shown', () => {
  const key = '-----BEGIN KEY-----\nAAAAB3NzaC1yc2E\nBBBBB3NzaC1yc2E\n-----END KEY-----\n';
  expect(redact('invalid: BBBBB3NzaC1yc2E', [key])).toBe('invalid: [redacted]');
});

test('S7: what a server says is shown without what turns a terminal around, in one line and not for ever', () => {
  expect(redact('remote: \u001b[31mred\u001b[0m\r\nremote: \u202eevil\u0007\u200b\n\n', [])).toBe(
    'remote: red; remote: evil',
  );
  expect(redact('x'.repeat(100_000), []).length).toBeLessThan(2_000);
});
