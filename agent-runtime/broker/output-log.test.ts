import { appendFileSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, expect, test } from 'vitest';
import { OutputStream } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { OutputLog } from './output-log.ts';

const folder = mkdtempSync(join(tmpdir(), 'lathe-output-log-'));
afterAll(() => rmSync(folder, { recursive: true }));
let files = 0;
const fresh = () => join(folder, String((files += 1)));

const OUT = OutputStream.OUTPUT_STREAM_STDOUT;
const ERR = OutputStream.OUTPUT_STREAM_STDERR;

/** Byte by byte with its stream, which is all that a reader may rely on. */
function readAll(log: OutputLog, from: number, most: number): string[] {
  const cursor = log.cursorAt(from);
  const all: string[] = [];
  for (let piece = log.read(cursor, most); piece !== undefined; piece = log.read(cursor, most)) {
    expect(piece.offset).toBe(from + all.length);
    expect(piece.data.length).toBeLessThanOrEqual(most);
    for (const byte of piece.data) all.push(`${piece.stream}:${byte}`);
  }
  return all;
}

test('O2: from any offset, in pieces of any size, every byte comes once and on its own stream', () => {
  const write = fc.record({
    stream: fc.constantFrom<OutputStream>(OUT, ERR),
    data: fc.oneof(fc.uint8Array({ minLength: 1, maxLength: 5 }), fc.uint8Array({ minLength: 120, maxLength: 300 })),
  });
  fc.assert(
    fc.property(
      fc.array(write, { maxLength: 20 }),
      fc.nat(2_000),
      fc.integer({ min: 1, max: 400 }),
      (writes, from, most) => {
        const path = fresh();
        const log = new OutputLog(path);
        for (const { stream, data } of writes) log.append(stream, data);
        const want = writes.flatMap(({ stream, data }) => [...data].map((byte) => `${stream}:${byte}`));
        const start = Math.min(from, want.length);
        expect(readAll(log, start, most)).toEqual(want.slice(start));
        log.close();
        const again = new OutputLog(path);
        expect(again.bytes).toBe(want.length);
        expect(readAll(again, start, most)).toEqual(want.slice(start));
        again.close();
      },
    ),
    { numRuns: 300 },
  );
});

test.for<[situation: string, torn: number[]]>([
  ['a head without its length', [0x7f, 0, 0]],
  ['a piece without its end', [5, 1, 2]],
  ['a head that promises more than a disk holds', [0x7f, 0xff, 0xff, 0xff, 0xff, 1]],
])('%s is cut off, and what comes next stands where it stood', ([, torn]) => {
  const path = fresh();
  const log = new OutputLog(path);
  log.append(OUT, Buffer.from('kept'));
  log.close();
  appendFileSync(path, Buffer.from(torn));
  const again = new OutputLog(path);
  expect(again.bytes).toBe(4);
  again.append(ERR, Buffer.from('!'));
  expect(readAll(again, 3, 100)).toEqual([`${OUT}:${'t'.charCodeAt(0)}`, `${ERR}:${'!'.charCodeAt(0)}`]);
  again.close();
});

test('a cursor at the end sees what is appended later', () => {
  const log = new OutputLog(fresh());
  log.append(OUT, Buffer.from('ab'));
  const cursor = log.cursorAt(2);
  expect(log.read(cursor, 10)).toBeUndefined();
  log.append(OUT, Buffer.from('cd'));
  expect(log.read(cursor, 10)).toMatchObject({ offset: 2, data: Buffer.from('cd') });
  log.close();
});
