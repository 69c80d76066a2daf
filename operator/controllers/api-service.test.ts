import { expect, test } from 'vitest';
import { planApiService, type Seen } from './api-service.ts';

const seen: Seen = {
  wanted: true,
  readyEndpoints: 1,
  unreadyMs: 0,
  present: { ours: true, uid: 'u', caBundle: 'ca' },
  caBundle: 'ca',
};
test.for<[situation: string, seen: Partial<Seen>, plan: string]>([
  ['it is as it should be', {}, 'nothing'],
  ['an endpoint is ready, and it is not there', { present: undefined }, 'create'],
  ['the authority was replaced', { caBundle: 'other' }, 'patch'],
  ['K11: no endpoint for less than a minute', { readyEndpoints: 0, unreadyMs: 59_999 }, 'nothing'],
  ['K11: no endpoint for a minute', { readyEndpoints: 0, unreadyMs: 60_000 }, 'delete'],
  ['K11: it is not made before an endpoint is ready', { readyEndpoints: 0, present: undefined }, 'nothing'],
  ['it is not wanted any more', { wanted: false, readyEndpoints: 0 }, 'delete'],
  [
    'K4: one of that name that is not ours is left alone',
    { present: { ours: false, uid: 'v', caBundle: 'x' } },
    'nothing',
  ],
  ['K4: also when it is not wanted', { wanted: false, present: { ours: false, uid: 'v', caBundle: 'x' } }, 'nothing'],
])('%s', ([, more, plan]) => expect(planApiService({ ...seen, ...more })).toBe(plan));
