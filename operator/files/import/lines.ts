/** The lines of a member, one at a time: UTF-8, JSON, and what the format says that they are. */
import { isUtf8 } from 'node:buffer';
import { LINES, MAX_LINE_BYTES, type LineKind, type LineOf } from '../export/format.ts';
import { broken } from './broken.ts';

/** What walks a value by recursion has room for more than this. */
const MAX_DEPTH = 128;

/** @throws PermanentError BadRequest */
export async function* linesOf<K extends LineKind>(
  kind: K,
  name: string,
  content: AsyncIterable<Buffer>,
): AsyncIterable<LineOf<K>> {
  let held: Buffer[] = [];
  let bytes = 0;
  const end = (piece: Buffer): LineOf<K> => {
    const line = Buffer.concat([...held, piece]);
    held = [];
    bytes = 0;
    return lineOf(kind, name, line);
  };
  for await (const piece of content) {
    let from = 0;
    for (let at = piece.indexOf(10); at !== -1; at = piece.indexOf(10, from)) {
      bytes += at - from;
      if (bytes > MAX_LINE_BYTES) throw tooLong(name);
      yield end(piece.subarray(from, at));
      from = at + 1;
    }
    bytes += piece.length - from;
    if (bytes > MAX_LINE_BYTES) throw tooLong(name);
    if (from < piece.length) held.push(piece.subarray(from));
  }
  if (bytes > 0) throw broken(`${name} ends in the middle of a line`);
}

function lineOf<K extends LineKind>(kind: K, name: string, line: Buffer): LineOf<K> {
  if (!isUtf8(line)) throw broken(`${name} is not UTF-8`);
  const text = line.toString('utf8');
  const { depth, hasNul } = shapeOf(text);
  if (depth > MAX_DEPTH) throw broken(`${name} has a line more than ${MAX_DEPTH} deep`);
  // jsonb has no place for it.
  if (hasNul) throw broken(`${name} has a NUL in a line`);
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw broken(`${name} has a line that is not JSON`);
  }
  const result = LINES[kind].safeParse(value);
  if (!result.success) {
    const [issue] = result.error.issues;
    throw broken(
      `${name} has a line that is not as this release knows it (${issue?.path.join('.') ?? ''}: ${issue?.code ?? ''})`,
    );
  }
  return result.data as LineOf<K>;
}

function shapeOf(text: string): Readonly<{ depth: number; hasNul: boolean }> {
  let [depth, deepest] = [0, 0];
  let [quoted, hasNul] = [false, false];
  for (let i = 0; i < text.length; i += 1) {
    const c = text.charCodeAt(i);
    if (quoted) {
      if (c === 0x5c) {
        hasNul ||= text.startsWith('u0000', i + 1);
        i += 1;
      } else if (c === 0x22) quoted = false;
    } else if (c === 0x22) quoted = true;
    else if (c === 0x5b || c === 0x7b) deepest = Math.max(deepest, (depth += 1));
    else if (c === 0x5d || c === 0x7d) depth -= 1;
  }
  return { depth: deepest, hasNul };
}

function tooLong(name: string) {
  return broken(`${name} has a line of more than ${MAX_LINE_BYTES} bytes`);
}
