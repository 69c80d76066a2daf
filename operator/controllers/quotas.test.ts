import { expect, test } from 'vitest';
import type { WorkspaceQuota } from './resources.ts';
import { lowestOf } from './quotas.ts';

const quota = (storedBytes?: string) =>
  ({ spec: { hard: storedBytes === undefined ? {} : { storedBytes } } }) as unknown as WorkspaceQuota;
test.for<[quotas: WorkspaceQuota[], lowest: number | undefined]>([
  [[], undefined],
  [[quota()], undefined],
  [[quota('1Ki'), quota('1k'), quota()], 1_000],
])('of several the lowest holds', ([quotas, lowest]) => expect(lowestOf(quotas)).toBe(lowest));
