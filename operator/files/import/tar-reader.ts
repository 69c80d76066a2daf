/**
 * The members of a tar that an export made. It is no reader of any tar: a header is taken only if it is, byte for byte, the
 * one that an export writes for what it says, so there are no devices, owners, sparse files or headers of two meanings here.
 */
import { isUtf8 } from 'node:buffer';
import { MAX_PATH_BYTES, escapeName } from '../../../proto/paths.ts';
import { BLOCK, padding, PAX_NAME, tarHeader, type TarHeader } from '../export/tar-header.ts';
import { broken } from './broken.ts';
import { ByteReader } from './bytes.ts';

export type TarMember = Readonly<{
  header: Required<TarHeader>;
  /** To be read before the next member; what is left of it is passed over. */
  content: AsyncIterable<Buffer>;
}>;

/** A path and a target at their longest, and the keys. Whatever an extended header claims, no more is read of it. */
const MAX_EXTENDED_BYTES = 2 * MAX_PATH_BYTES + 512;
const ZEROS = Buffer.alloc(BLOCK);
const TYPES: Readonly<Record<string, Required<TarHeader>['type']>> = { '0': 'file', '2': 'symlink', '5': 'directory' };

/** @throws PermanentError BadRequest */
export async function* tarMembers(source: AsyncIterable<Buffer>, signal?: AbortSignal): AsyncIterable<TarMember> {
  const reader = new ByteReader(source);
  try {
    for (;;) {
      signal?.throwIfAborted();
      const first = await reader.take(BLOCK);
      if (first.equals(ZEROS)) break;
      const header = await headerOf(first, reader);
      let read = 0;
      const content = (async function* () {
        for await (const piece of reader.pieces(header.size - read)) {
          read += piece.length;
          yield piece;
        }
      })();
      yield { header, content };
      for await (const piece of reader.pieces(header.size - read)) void piece;
      const fill = await reader.take(padding(header.size));
      if (!fill.equals(ZEROS.subarray(0, fill.length)))
        throw broken(`there is something after ${escapeName(header.name)}`);
    }
    if (!(await reader.take(BLOCK)).equals(ZEROS) || !(await reader.atEnd()))
      throw broken('there is something after its end');
  } finally {
    await reader.close();
  }
}

async function headerOf(first: Buffer, reader: ByteReader): Promise<Required<TarHeader>> {
  const whole = [first];
  const records = new Map<string, string>();
  let block = first;
  if (flagOf(first) === 'x') {
    const bytes = octal(first, 124, 12);
    if (textAt(first, 0, 100) !== PAX_NAME || bytes > MAX_EXTENDED_BYTES)
      throw broken(`an extended header has ${bytes} bytes, at most ${MAX_EXTENDED_BYTES} are taken`);
    const extension = await reader.take(bytes);
    whole.push(extension, await reader.take(padding(bytes)));
    recordsOf(extension, records);
    block = await reader.take(BLOCK);
    whole.push(block);
  }
  const type = TYPES[flagOf(block)];
  if (type === undefined) throw broken(`it has a member of type ${escapeName(flagOf(block))}, which no export has`);
  const size = Number(records.get('size') ?? octal(block, 124, 12));
  const header: Required<TarHeader> = {
    name: records.get('path') ?? textAt(block, 0, 100),
    linkname: records.get('linkpath') ?? textAt(block, 157, 100),
    size,
    mode: octal(block, 100, 8),
    mtime: octal(block, 136, 12),
    type,
  };
  if (
    !Number.isSafeInteger(size) ||
    size < 0 ||
    (size > 0 && type !== 'file') ||
    (header.linkname !== '' && type !== 'symlink')
  )
    throw broken(`the header of ${escapeName(header.name)} says what can't be`);
  if (!Buffer.concat(whole).equals(tarHeader(header)))
    throw broken(`the header before byte ${reader.at} is not as an export writes it`);
  return header;
}

function recordsOf(extension: Buffer, records: Map<string, string>): void {
  if (!isUtf8(extension)) throw broken('an extended header is not UTF-8');
  for (let at = 0; at < extension.length;) {
    const space = extension.indexOf(0x20, at);
    const length = Number(extension.subarray(at, space).toString('latin1'));
    const end = at + length;
    const equals = extension.indexOf(0x3d, space);
    if (!Number.isInteger(length) || length < 5 || end > extension.length || equals === -1 || equals >= end)
      throw broken('an extended header is none');
    records.set(
      extension.subarray(space + 1, equals).toString('utf8'),
      extension.subarray(equals + 1, end - 1).toString('utf8'),
    );
    at = end;
  }
}

function flagOf(block: Buffer): string {
  return block.subarray(156, 157).toString('latin1');
}

function textAt(block: Buffer, at: number, length: number): string {
  const field = block.subarray(at, at + length);
  const end = field.indexOf(0);
  return field.subarray(0, end === -1 ? length : end).toString('latin1');
}

function octal(block: Buffer, at: number, length: number): number {
  const text = textAt(block, at, length);
  if (!/^[0-7]+$/.test(text)) throw broken('a number in a header is none');
  return Number.parseInt(text, 8);
}
