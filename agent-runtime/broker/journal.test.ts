import { appendFileSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Dispatch, Finished, OutputStream, TreeOffer } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { Journal } from './journal.ts';

let folder: string;
beforeEach(() => void (folder = mkdtempSync(join(tmpdir(), 'lathe-journal-'))));
afterEach(() => rmSync(folder, { recursive: true }));

const dispatch = (execution: string) => Dispatch.fromPartial({ execution, command: 'true' });
const output = (execution: string, offset: bigint, text: string) => ({
  execution,
  stream: OutputStream.OUTPUT_STREAM_STDOUT,
  offset,
  data: Buffer.from(text),
});

test('what was written is there for the next broker of the same pod, under the same boot', () => {
  const first = new Journal(folder);
  const entry = first.dispatched(dispatch('a'), 'guest');
  first.output(entry, output('a', 0n, 'hello '));
  first.output(entry, output('a', 6n, 'world'));
  first.finished(entry, Finished.fromPartial({ execution: 'a', exitCode: 3 }));
  first.offered(TreeOffer.fromPartial({ execution: 'a', last: true }));
  first.dispatched(dispatch('b'), undefined);
  first.close();
  const second = new Journal(folder);
  expect(second.boot).toBe(first.boot);
  expect(second.entries.get('a')).toMatchObject({
    work: 'guest',
    outputBytes: 11n,
    finished: { exitCode: 3 },
    offers: [{ last: true }],
  });
  expect(second.entries.get('b')).toMatchObject({ work: undefined, outputBytes: 0n });
  const again = second.entries.get('a');
  expect(again && [...second.outputFrom(again, 6n)].map((o) => o.data.toString())).toEqual(['world']);
});

test('output that was written before, or comes after a gap, is not written', () => {
  const journal = new Journal(folder);
  const entry = journal.dispatched(dispatch('a'), undefined);
  expect(journal.output(entry, output('a', 0n, 'one'))).toBe(true);
  expect(journal.output(entry, output('a', 0n, 'one'))).toBe(false);
  expect(journal.output(entry, output('a', 9n, 'late'))).toBe(false);
});

test('what is settled is forgotten', () => {
  const first = new Journal(folder);
  first.dispatched(dispatch('a'), undefined);
  first.settled('a');
  first.close();
  expect(new Journal(folder).entries.size).toBe(0);
});

test('a record that a killed broker left half-written is cut off, and what comes after it is read', () => {
  const first = new Journal(folder);
  first.dispatched(dispatch('a'), undefined);
  first.close();
  appendFileSync(join(folder, 'journal'), Buffer.from([0, 0, 1, 0, 7, 7]));
  const second = new Journal(folder);
  second.dispatched(dispatch('b'), undefined);
  second.close();
  expect([...new Journal(folder).entries.keys()]).toEqual(['a', 'b']);
});
