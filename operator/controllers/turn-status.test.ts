import { expect, test } from 'vitest';
import type { TurnProjection } from '../store/control-store.ts';
import { pendingStatus, turnStatus } from './turn-status.ts';

const row: TurnProjection = {
  ...{
    id: 'i',
    workspace: 'w',
    name: 't',
    uid: 'u',
    session: 'main',
    spec: { workspace: 'w', command: 'x' },
    phase: 'Running',
    reason: null,
    message: null,
  },
  ...{
    answer: null,
    exit_code: null,
    output: null,
    steps: 0,
    usage: null,
    files: null,
    from_version: null,
    to_version: null,
    cancel_requested: false,
  },
  ...{
    queued_at: new Date(0),
    started_at: new Date(1_000),
    finished_at: null,
    namespace: 'n',
    workspace_name: 'w',
    sandbox_report: null,
    sandbox_name: null,
  },
};
const now = new Date(5_000);
const status = (more: Partial<TurnProjection>, before?: ReturnType<typeof turnStatus>) =>
  turnStatus(before, 1, { ...row, ...more }, now);
const conditions = (s: ReturnType<typeof turnStatus>) =>
  Object.fromEntries((s.conditions ?? []).map((c) => [c.type, c.status]));

test.for<[phase: TurnProjection['phase'], want: Record<string, string>]>([
  ['Queued', { Finished: 'False', Succeeded: 'False', Ready: 'False', Reconciling: 'True', Stalled: 'False' }],
  ['Running', { Finished: 'False', Succeeded: 'False', Ready: 'False', Reconciling: 'True', Stalled: 'False' }],
  [
    'NeedsContinuation',
    { Finished: 'False', Succeeded: 'False', Ready: 'False', Reconciling: 'True', Stalled: 'False' },
  ],
  ['Completed', { Finished: 'True', Succeeded: 'True', Ready: 'True', Reconciling: 'False', Stalled: 'False' }],
  ['Failed', { Finished: 'True', Succeeded: 'False', Ready: 'False', Reconciling: 'False', Stalled: 'True' }],
  ['Blocked', { Finished: 'True', Succeeded: 'False', Ready: 'False', Reconciling: 'False', Stalled: 'True' }],
  ['Cancelled', { Finished: 'True', Succeeded: 'False', Ready: 'False', Reconciling: 'False', Stalled: 'True' }],
])('a turn that is %s', ([phase, want]) => expect(conditions(status({ phase }))).toEqual(want));

test('the same row gives the same status, times included', () => {
  const first = status({});
  expect(turnStatus(first, 1, row, new Date(99_000))).toEqual(first);
});

test('what keeps the sandbox from running is in the message of a turn that waits for it', () => {
  expect(status({ sandbox_report: { reason: 'ImagePullFailed', message: 'no such image' } })).toMatchObject({
    phase: 'Running',
    reason: 'ImagePullFailed',
    message: expect.stringContaining('no such image'),
  });
});

test('a long answer is cut at a character, and its length is told', () => {
  const s = status({ answer: 'é'.repeat(5_000) });
  expect(s.answer).toBe('é'.repeat(2_048));
  expect(s.answerBytes).toBe(10_000);
});

test('without its workspace it is Pending and says why', () => {
  expect(pendingStatus(undefined, 1, 'NotFound', 'no workspace x', now)).toMatchObject({
    phase: 'Pending',
    message: 'no workspace x',
  });
});
