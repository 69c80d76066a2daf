import assert from 'node:assert/strict';
import { test } from 'node:test';
import { total } from '../src/invoice.js';

test('an empty invoice costs nothing', () => assert.equal(total([]), 0));

test('every line counts, the first one too', () => {
  const lines = [
    { cents: 250, quantity: 2 },
    { cents: 199, quantity: 1 },
  ];
  assert.equal(total(lines), 699);
});

test('a discount is rounded to the nearest cent', () => assert.equal(total([{ cents: 999, quantity: 1 }], 15), 849));
test('half a cent is rounded up', () => assert.equal(total([{ cents: 333, quantity: 1 }], 50), 167));
