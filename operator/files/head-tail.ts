/** What a model and a person see of a long output: its beginning and its end, and how much was left out between. */
import { isUtf8 } from 'node:buffer';

export type HeadTail = Readonly<{ head: string; tail: string; omittedBytes: number }>;

/** `maxBytes` for both together. Cut at characters; bytes that are no UTF-8 are said to be binary and shown as U+FFFD. */
export function headTail(output: Buffer, maxBytes: number): HeadTail {
  if (output.length <= maxBytes) return { head: text(output), tail: '', omittedBytes: 0 };
  const half = Math.floor(maxBytes / 2);
  const headEnd = back(output, half);
  const tailStart = forward(output, output.length - half);
  return {
    head: text(output.subarray(0, headEnd)),
    tail: text(output.subarray(tailStart)),
    omittedBytes: tailStart - headEnd,
  };
}

/** As one text. */
export function joined(of: HeadTail): string {
  return of.omittedBytes === 0 ? of.head + of.tail : `${of.head}\n[… ${of.omittedBytes} bytes left out …]\n${of.tail}`;
}

function text(bytes: Buffer): string {
  // Postgres and terminals take no NUL.
  const shown = bytes.toString('utf8').replaceAll('\0', '\uFFFD');
  return isUtf8(bytes) ? shown : `[binary output, ${bytes.length} bytes]\n${shown}`;
}

/** The start of the character that `at` is in. */
function back(bytes: Buffer, at: number): number {
  let i = at;
  while (i > 0 && i > at - 4 && isContinuation(bytes[i])) i -= 1;
  return i;
}

function forward(bytes: Buffer, at: number): number {
  let i = at;
  while (i < bytes.length && i < at + 4 && isContinuation(bytes[i])) i += 1;
  return i;
}

function isContinuation(byte: number | undefined): boolean {
  return byte !== undefined && (byte & 0xc0) === 0x80;
}
