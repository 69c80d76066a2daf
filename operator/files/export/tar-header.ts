/** The bytes before a member's content in a tar (POSIX.1-2001, "pax"): whoever goes on in the middle of one must know their length. Pure. */

export type TarHeader = Readonly<{
  name: string;
  /** Bytes of the content that follows. */
  size: number;
  mode: number;
  type?: 'file' | 'symlink' | 'directory';
  linkname?: string;
  /** Seconds. */
  mtime?: number;
}>;

export const BLOCK = 512;
export const PAX_NAME = 'PaxHeader';
/** What fits into the fields of the plain header; anything else goes into an extended one before it. */
const NAME_BYTES = 100;
const PLAIN_SIZE = 8 ** 11;
const FLAGS = { file: '0', symlink: '2', directory: '5', extended: 'x' } as const;

/** Owners are always the same, so that the same content is the same bytes. */
export function tarHeader(header: TarHeader): Buffer {
  const { name, size, mode, type = 'file', linkname = '', mtime = 0 } = header;
  const plain = block(fit(name), fit(linkname), size >= PLAIN_SIZE ? 0 : size, mode, FLAGS[type], mtime);
  const extension = Buffer.from(recordsOf(header));
  if (extension.length === 0) return plain;
  return Buffer.concat([
    block(PAX_NAME, '', extension.length, 0o644, FLAGS.extended, 0),
    extension,
    Buffer.alloc(padding(extension.length)),
    plain,
  ]);
}

/** Length of that, without making it. */
export function tarHeaderBytes(header: TarHeader): number {
  const extension = Buffer.byteLength(recordsOf(header));
  return extension === 0 ? BLOCK : BLOCK * 2 + extension + padding(extension);
}

/** Zeros after a content of this size. */
export function padding(size: number): number {
  return (BLOCK - (size % BLOCK)) % BLOCK;
}

function recordsOf({ name, size, linkname = '' }: TarHeader): string {
  return [
    isPlain(name) ? '' : record('path', name),
    isPlain(linkname) ? '' : record('linkpath', linkname),
    size >= PLAIN_SIZE ? record('size', String(size)) : '',
  ].join('');
}

function isPlain(text: string): boolean {
  return text.length <= NAME_BYTES && /^[\x20-\x7e]*$/.test(text);
}

function fit(text: string): string {
  return isPlain(text) ? text : text.replaceAll(/[^\x20-\x7e]/g, '_').slice(-NAME_BYTES);
}

/** Its own length is part of it. */
function record(key: string, value: string): string {
  const rest = ` ${key}=${value}\n`;
  let length = Buffer.byteLength(rest);
  while (String(length).length + Buffer.byteLength(rest) !== length)
    length = String(length).length + Buffer.byteLength(rest);
  return `${length}${rest}`;
}

function block(name: string, linkname: string, size: number, mode: number, flag: string, mtime: number): Buffer {
  const bytes = Buffer.alloc(BLOCK);
  const octal = (value: number, at: number, digits: number) =>
    bytes.write(`${value.toString(8).padStart(digits, '0')}\0`, at, 'latin1');
  bytes.write(name, 0, 'latin1');
  octal(mode, 100, 7);
  octal(0, 108, 7);
  octal(0, 116, 7);
  octal(size, 124, 11);
  octal(mtime, 136, 11);
  bytes.write('        ', 148, 'latin1');
  bytes.write(flag, 156, 'latin1');
  bytes.write(linkname, 157, 'latin1');
  bytes.write('ustar\u000000', 257, 'latin1');
  octal(0, 329, 7);
  octal(0, 337, 7);
  let sum = 0;
  for (const byte of bytes) sum += byte;
  bytes.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1');
  return bytes;
}
