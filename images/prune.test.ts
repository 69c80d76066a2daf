import { expect, test } from 'vitest';
import { plan, type Kept } from './prune.ts';

const HOUR = 3_600_000;
const rules = { nowMs: 1_000 * HOUR, graceMs: HOUR, maxAgeMs: 300 * HOUR, keep: 2 };
const server = (hash: string, ageHours: number): Kept => ({
  name: `server-${hash}.tar`,
  usedAtMs: rules.nowMs - ageHours * HOUR,
});
const none: ReadonlySet<string> = new Set();

test.for<[situation: string, files: readonly Kept[], current: ReadonlySet<string>, goes: readonly string[]]>([
  ['an empty cache', [], none, []],
  ['as many as are kept', [server('a', 2), server('b', 3)], none, []],
  ['one more: the one used longest ago', [server('b', 3), server('c', 4), server('a', 2)], none, ['server-c.tar']],
  ['the one in use is the oldest', [server('a', 2), server('b', 3), server('c', 4)], new Set(['server-c.tar']), []],
  ['many within the hour: somebody may be reading them', [1, 2, 3, 4].map((n) => server(`${n}`, 0.5)), none, []],
  ['too old, though there is only one', [server('a', 301)], none, ['server-a.tar']],
  [
    'each image by itself',
    [server('a', 2), server('b', 3), { name: 'debian-server-x', usedAtMs: rules.nowMs - 9 * HOUR }],
    none,
    [],
  ],
])('%s', ([, files, current, goes]) => expect(plan(files, current, rules)).toEqual(goes));
