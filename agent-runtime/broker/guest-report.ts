/** What a guest says of an execution that it was given, checked against what it may say, and written down. */
import type { AttachRequest } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { Entry, Journal } from './journal.ts';

type Report = Extract<NonNullable<AttachRequest['message']>, { $case: 'output' | 'finished' | 'offer' }>;

const MAX_OUTPUT_FRAME = 64 * 1024;

/** What was said before is taken once. @throws Error for what a guest of ours never says */
export function takeReport(journal: Journal, entry: Entry, report: Report): void {
  if (entry.lost !== undefined) return;
  switch (report.$case) {
    case 'output': {
      const { offset, data, stream } = report.value;
      const { bytes } = entry.output;
      const end = offset + BigInt(data.length);
      if (entry.finished !== undefined || end <= BigInt(bytes)) return;
      if (offset > BigInt(bytes)) throw new Error(`output at ${offset}, and there are only ${bytes} bytes before it`);
      if (data.length > MAX_OUTPUT_FRAME) throw new Error(`an output frame of ${data.length} bytes`);
      if (end > entry.credit) throw new Error(`output up to ${end}, and the credit ends at ${entry.credit}`);
      if (end > entry.dispatch.outputLimit)
        throw new Error(`output up to ${end}, and the limit is ${entry.dispatch.outputLimit}`);
      entry.output.append(stream, data.subarray(bytes - Number(offset)));
      return;
    }
    case 'finished':
      return journal.finished(entry, report.value);
    case 'offer':
      return journal.offered(entry, report.value);
  }
}
