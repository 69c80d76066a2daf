/**
 * A command's output as bytes, in the guest's memory and on the broker's disk: per piece one byte of head, four more of
 * length where the piece has 127 bytes or more, and the piece. A command may print byte by byte on two streams in turn,
 * so what is kept of a piece must stay small beside it.
 */
import { OutputStream } from '../proto/gen/lathe/sandbox/v1/sandbox.ts';

export type OutputRecord = Readonly<{
  stream: OutputStream;
  /** Where its data stands, and where the next record does. */
  start: number;
  end: number;
}>;

const STDERR = 0x80;
const LONG = 0x7f;
/** Of a head, at most. */
export const HEAD_BYTES = 5;

export function encodeRecord(stream: OutputStream, data: Uint8Array): Buffer {
  const long = data.length >= LONG;
  const record = Buffer.allocUnsafe((long ? HEAD_BYTES : 1) + data.length);
  record[0] = (stream === OutputStream.OUTPUT_STREAM_STDERR ? STDERR : 0) | (long ? LONG : data.length);
  if (long) record.writeUInt32BE(data.length, 1);
  record.set(data, long ? HEAD_BYTES : 1);
  return record;
}

/** Undefined when the head is not whole. `end` may lie behind what `bytes` has. */
export function recordAt(bytes: Buffer, at: number): OutputRecord | undefined {
  const head = bytes[at];
  if (head === undefined) return undefined;
  const stream = (head & STDERR) === 0 ? OutputStream.OUTPUT_STREAM_STDOUT : OutputStream.OUTPUT_STREAM_STDERR;
  const short = head & LONG;
  if (short !== LONG) return { stream, start: at + 1, end: at + 1 + short };
  if (at + HEAD_BYTES > bytes.length) return undefined;
  return { stream, start: at + HEAD_BYTES, end: at + HEAD_BYTES + bytes.readUInt32BE(at + 1) };
}
