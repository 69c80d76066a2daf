import { expect, test } from 'vitest';
import { newId } from './ids.ts';

test('an id is a UUID of version 7, and later ids sort later', () => {
  expect(newId()).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  expect(newId(1_000) < newId(1_001)).toBe(true);
});
