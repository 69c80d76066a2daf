import { expect, test } from 'vitest';
import { headTail, joined } from './head-tail.ts';

test('a short output is shown whole', () => expect(joined(headTail(Buffer.from('hello\n'), 100))).toBe('hello\n'));

test('O1: of a long output the beginning and the end are shown, and how much is missing', () => {
  const shown = headTail(Buffer.from(`${'a'.repeat(50)}${'m'.repeat(1_000)}${'z'.repeat(50)}`), 100);
  expect(shown).toEqual({ head: 'a'.repeat(50), tail: 'z'.repeat(50), omittedBytes: 1_000 });
});

test('O3: a character at a cut is left out whole, never halved', () => {
  for (let length = 20; length < 30; length += 1) {
    const { head, tail } = headTail(Buffer.from('é📄'.repeat(50)), length);
    expect(head + tail).not.toContain('\uFFFD');
    expect(head).not.toContain('binary');
  }
});

test('O3: binary output is shown as such', () => {
  expect(headTail(Buffer.from([0xff, 0xfe, 0x00, 0x41]), 100).head).toMatch(/^\[binary output, 4 bytes\]\n/);
});
