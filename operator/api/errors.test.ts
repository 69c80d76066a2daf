import { expect, test } from 'vitest';
import { PermanentError, TransientError } from '../errors.ts';
import { statusOf } from './errors.ts';

test.for<[reason: string, code: number]>([
  ['BadRequest', 400],
  ['PathRefused', 400],
  ['Unauthorized', 401],
  ['Forbidden', 403],
  ['ScopeRefused', 403],
  ['SecretInDiff', 403],
  ['QuotaExceeded', 403],
  ['NotFound', 404],
  ['MethodNotAllowed', 405],
  ['Conflict', 409],
  ['DeletionsHeld', 409],
  ['PreconditionFailed', 412],
  ['FileTooLarge', 413],
  ['WorkspaceFull', 413],
  ['TooManyFiles', 413],
  ['RequestEntityTooLarge', 413],
  ['RangeNotSatisfiable', 416],
  ['SomethingNew', 422],
])('%s is %i', ([reason, code]) => {
  expect(statusOf(new PermanentError(reason, 'why'), 'billing')).toEqual({
    kind: 'Status',
    apiVersion: 'v1',
    metadata: {},
    status: 'Failure',
    message: 'why',
    reason,
    code,
    details: { name: 'billing', group: 'live.lathe.dev', kind: 'workspaces' },
  });
});

test.for<[reason: string, code: number]>([
  ['StoreUnavailable', 503],
  ['ServiceUnavailable', 503],
  ['TooManyRequests', 429],
  ['SomethingNew', 503],
])('%s heals with time: %i, and when to come back', ([reason, code]) => {
  expect(statusOf(new TransientError(reason, 'why', { retryAfterMs: 2_500 }))).toMatchObject({
    reason,
    code,
    details: { retryAfterSeconds: 3 },
  });
});

test('what is no error of ours says nothing of what it holds', () => {
  const status = statusOf(new Error('postgres://lathe:secret@db'), 'billing');
  expect(status).toMatchObject({ reason: 'Unknown', code: 500 });
  expect(JSON.stringify(status)).not.toContain('secret');
});
