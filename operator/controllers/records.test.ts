import { describe, expect, test } from 'vitest';
import type { RecordRow } from '../store/control-store.ts';
import { isDue, recordFor, type Claimant } from './records.ts';

const ID = '01a00000-0000-7000-8000-000000000001';
const claimant: Claimant = { uid: 'new', name: 'billing', namespaceUid: 'here', adoptFrom: undefined };
const record: RecordRow = {
  ...{ id: ID, uid: 'old', name: 'billing', namespace_uid: 'here', files: 3n, bytes: 40n },
  deleted_at: new Date(0),
};

describe('the record that a Workspace goes on with', () => {
  test.for<[situation: string, claimant: Partial<Claimant>, found: RecordRow[], result: object]>([
    ['nothing was there', {}, [], {}],
    ['one of its name was deleted: it starts empty', {}, [record], {}],
    ['it was seen before', { adoptFrom: ID }, [{ ...record, uid: 'new' }], {}],
    ['it asks for a deleted one', { adoptFrom: ID }, [record], { adopt: ID }],
    ['it asks for one that is in use', { adoptFrom: ID }, [{ ...record, deleted_at: null }], { reason: 'Conflict' }],
    ['K7: it asks for one that this namespace never had', { adoptFrom: ID }, [], { reason: 'NotFound' }],
    ['its namespace was made anew', {}, [{ ...record, namespace_uid: 'before' }], { reason: 'OrphanFound' }],
    ['the same, and it says None', { adoptFrom: 'None' }, [{ ...record, namespace_uid: 'before' }], {}],
    ['the same, and it says which', { adoptFrom: ID }, [{ ...record, namespace_uid: 'before' }], { adopt: ID }],
  ])('%s', ([, more, found, result]) => expect(recordFor({ ...claimant, ...more }, found)).toMatchObject(result));
});

const DAY = 24 * 3_600_000;
test.for<[days: number, retention: string | undefined, orphan: boolean, due: boolean]>([
  [6.9, undefined, false, false],
  [7, undefined, false, true],
  [1, '1h', false, true],
  [8, undefined, true, false],
  [30, undefined, true, true],
])('%f days after its end, retention %s, orphan %s: purged %s', ([days, retention, orphan, due]) =>
  expect(isDue({ id: ID, spec: retention === undefined ? {} : { retention }, deletedMs: days * DAY, orphan })).toBe(
    due,
  ),
);
