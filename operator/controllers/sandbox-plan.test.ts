import { expect, test } from 'vitest';
import { planSandbox, sandboxConditions, seePod, type Action, type Observed } from './sandbox-plan.ts';

const pod = {
  name: 'p',
  uid: 'u1',
  terminating: false,
  ended: false,
  workRestarts: 0,
  trouble: undefined,
  ready: true,
};
const used: Observed = {
  ...{
    operatingMode: 'Running',
    demanded: true,
    closed: false,
    activity: 7n,
    idleMs: 10_000,
    idleTimeoutMs: 60_000,
    ageMs: 20_000,
    maxLifetimeMs: 3_600_000,
  },
  ...{ openExecutions: 0, runningTurn: undefined, podUid: 'u1', pod, attached: true },
};
const none: Observed = { ...used, podUid: undefined, pod: undefined, ageMs: undefined, attached: false };
const close: Action = { do: 'close', seen: 7n };
const del = (why: string): Action => ({ do: 'deletePod', name: 'p', uid: 'u1', why });
const revoke: Action = { do: 'revoke', podUid: 'u1' };

test.for<[situation: string, seen: Observed, want: readonly Action[]]>([
  ['asked for and not there: it is made', none, [{ do: 'createPod' }]],
  ['not asked for: nothing', { ...none, demanded: false }, []],
  ['asked for, but suspended by a person: nothing', { ...none, operatingMode: 'Suspended' }, []],
  ['closed to turns: nothing is made until it is asked for again', { ...none, closed: true }, []],
  ['in use: looked at again when its time is up', used, [{ do: 'recheck', afterMs: 50_000 }]],
  ['a turn runs: it stays, however long it is silent', { ...used, runningTurn: 't', idleMs: 99_999 }, []],
  [
    'a result is not stored yet: it stays, whoever asked',
    { ...used, openExecutions: 1, operatingMode: 'Suspended' },
    [],
  ],
  ['idle: closed to turns before its pod is deleted', { ...used, idleMs: 60_000 }, [close, del('Idle')]],
  [
    'suspended by a person: it does not wait for the timeout',
    { ...used, operatingMode: 'Suspended' },
    [close, del('Requested')],
  ],
  ['a crash after closing: the next pass deletes', { ...used, closed: true }, [del('Idle')]],
  ['at the end of its life, between commands', { ...used, ageMs: 3_600_000 }, [close, del('Retired')]],
  ['at the end of its life, in the middle of a turn: later', { ...used, ageMs: 3_600_000, runningTurn: 't' }, []],
  [
    'its pod was deleted by somebody: its token is revoked and a new one made',
    { ...used, pod: { ...pod, terminating: true } },
    [revoke, { do: 'createPod' }],
  ],
  ['its pod vanished', { ...used, pod: undefined }, [revoke, { do: 'createPod' }]],
  [
    'its pod was evicted: it is removed and replaced',
    { ...used, pod: { ...pod, ended: true } },
    [revoke, del('Ended'), { do: 'createPod' }],
  ],
  [
    'its guest died twice: a new pod is quicker than a growing back-off',
    { ...used, pod: { ...pod, workRestarts: 2 } },
    [del('Restarting')],
  ],
  [
    'another pod than the row says: the old token is revoked',
    { ...used, podUid: 'u0' },
    [
      { do: 'revoke', podUid: 'u0' },
      { do: 'recheck', afterMs: 50_000 },
    ],
  ],
])('%s', ([, seen, want]) => expect(planSandbox(seen)).toEqual(want));

test.for<[situation: string, status: object, reason: string, message: string]>([
  [
    'no node',
    { conditions: [{ type: 'PodScheduled', status: 'False', message: '0/1 nodes are available' }] },
    'SandboxUnschedulable',
    '0/1 nodes',
  ],
  [
    'no image',
    { containerStatuses: [{ name: 'work', state: { waiting: { reason: 'ImagePullBackOff', message: 'not found' } } }] },
    'ImagePullFailed',
    'container work: not found',
  ],
  [
    'no start',
    {
      containerStatuses: [
        { name: 'work', state: { waiting: { reason: 'CreateContainerError', message: 'no such file' } } },
      ],
    },
    'SandboxLost',
    'no such file',
  ],
])("K2: %s is a named trouble with the cluster's own message", ([, status, reason, message]) => {
  const seen = seePod({
    metadata: { name: 'p', uid: 'u', resourceVersion: '1' },
    spec: { containers: [] },
    status,
  } as never);
  expect(seen.trouble).toMatchObject({ reason, message: expect.stringContaining(message) });
});

test('conditions say suspended, starting, attached and what is wrong', () => {
  const ready = (o: Observed, failure?: { reason: string; message: string }) =>
    sandboxConditions(o, failure, 1).map((c) => `${c.type}=${c.status} ${c.reason}`);
  expect(ready(used)).toEqual(['Ready=True Attached', 'Suspended=False InUse']);
  expect(ready({ ...used, attached: false })).toEqual(['Ready=False Starting', 'Suspended=False InUse']);
  expect(ready({ ...none, demanded: false })).toEqual(['Ready=False Idle', 'Suspended=True Idle']);
  expect(ready(none, { reason: 'QuotaExceeded', message: 'm' })).toEqual([
    'Ready=False QuotaExceeded',
    'Suspended=False QuotaExceeded',
  ]);
});
