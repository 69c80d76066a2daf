import { appendFileSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Dispatch, Finished, OutputStream, TreeOffer } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { Journal } from './journal.ts';

let folder: string;
beforeEach(() => void (folder = mkdtempSync(join(tmpdir(), 'lathe-journal-'))));
afterEach(() => rmSync(folder, { recursive: true }));

const dispatch = (execution: string) => Dispatch.fromPartial({ execution, command: 'true' });
const offer = (last: boolean) => TreeOffer.fromPartial({ execution: 'a', last });

test('what was written is there for the next broker of the same pod, under the same boot', () => {
  const first = new Journal(folder);
  first.obey({ incarnation: 2n, epoch: 7n });
  const entry = first.dispatched(dispatch('a'), 'guest');
  entry.output.append(OutputStream.OUTPUT_STREAM_STDOUT, Buffer.from('hello '));
  entry.output.append(OutputStream.OUTPUT_STREAM_STDERR, Buffer.from('world'));
  first.finished(entry, Finished.fromPartial({ execution: 'a', exitCode: 3 }));
  first.offered(entry, offer(true));
  first.dispatched(dispatch('b'), undefined);
  first.close();
  const second = new Journal(folder);
  expect(second.boot).toBe(first.boot);
  expect(second.owner).toEqual({ incarnation: 2n, epoch: 7n });
  expect(second.entries.get('a')).toMatchObject({ work: 'guest', finished: { exitCode: 3 }, offers: [{ last: true }] });
  const again = second.entries.get('a')?.output;
  expect(again?.bytes).toBe(11);
  expect(again?.read(again.cursorAt(6), 100)?.data.toString()).toBe('world');
  expect(second.entries.get('b')).toMatchObject({ work: undefined, finished: undefined });
});

test('what is settled is forgotten, its output too', () => {
  const first = new Journal(folder);
  const entry = first.dispatched(dispatch('a'), undefined);
  entry.output.append(OutputStream.OUTPUT_STREAM_STDOUT, Buffer.from('x'));
  first.settled(entry);
  first.close();
  expect(new Journal(folder).entries.size).toBe(0);
  expect(readdirSync(join(folder, 'outputs'))).toEqual([]);
});

test('half of an offer is no offer: the guest starts over', () => {
  const first = new Journal(folder);
  first.offered(first.dispatched(dispatch('a'), 'guest'), offer(false));
  first.close();
  const second = new Journal(folder);
  const entry = second.entries.get('a');
  expect(entry?.offers).toEqual([]);
  if (entry !== undefined) second.offered(entry, offer(true));
  second.close();
  expect(new Journal(folder).entries.get('a')?.offers).toHaveLength(1);
});

test('after a start of the machine nothing of it is believed, and the boot is another', () => {
  const first = new Journal(folder, 'one');
  first.dispatched(dispatch('a'), undefined);
  first.close();
  const second = new Journal(folder, 'two');
  expect(second.boot).not.toBe(first.boot);
  expect(second.entries.size).toBe(0);
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
