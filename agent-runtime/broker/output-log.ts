/** One execution's output on the broker's disk: appended as it arrives, read again from any offset. */
import { closeSync, existsSync, fstatSync, ftruncateSync, openSync, readSync, rmSync, writeSync } from 'node:fs';
import type { OutputStream } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { encodeRecord, HEAD_BYTES, recordAt, type OutputRecord } from '../output-records.ts';

/** A place in the log. Moves on with each read. */
export type Cursor = { offset: number; position: number; skip: number };
export type Piece = Readonly<{ stream: OutputStream; offset: number; data: Buffer }>;

const WINDOW_BYTES = 64 * 1024;

export class OutputLog {
  readonly #path: string;
  /** Most commands print nothing, and then there is no file. */
  #fd: number | undefined;
  #size = 0;
  #bytes = 0;
  #window: Readonly<{ position: number; bytes: Buffer }> = { position: 0, bytes: Buffer.alloc(0) };

  /** What a killed broker left half-written is cut off; its sender sends it again. */
  constructor(path: string) {
    this.#path = path;
    if (!existsSync(path)) return;
    this.#fd = openSync(path, 'a+', 0o600);
    this.#size = fstatSync(this.#fd).size;
    const cursor: Cursor = { offset: 0, position: 0, skip: 0 };
    for (let record = this.#head(cursor.position); record !== undefined; record = this.#head(cursor.position)) {
      cursor.position = record.end;
      cursor.offset += record.end - record.start;
    }
    if (cursor.position < this.#size) ftruncateSync(this.#fd, cursor.position);
    this.#size = cursor.position;
    this.#bytes = cursor.offset;
  }

  /** Of output, both streams together. */
  get bytes(): number {
    return this.#bytes;
  }

  append(stream: OutputStream, data: Uint8Array): void {
    const record = encodeRecord(stream, data);
    const fd = (this.#fd ??= openSync(this.#path, 'a+', 0o600));
    try {
      for (let at = 0; at < record.length;) at += writeSync(fd, record, at);
    } catch (error) {
      ftruncateSync(fd, this.#size);
      throw error;
    }
    this.#size += record.length;
    this.#bytes += data.length;
  }

  cursorAt(offset: number): Cursor {
    const cursor: Cursor = { offset, position: 0, skip: 0 };
    let at = 0;
    for (let record = this.#head(0); record !== undefined; record = this.#head(cursor.position)) {
      const length = record.end - record.start;
      if (at + length > offset) {
        cursor.skip = offset - at;
        break;
      }
      at += length;
      cursor.position = record.end;
    }
    return cursor;
  }

  /** The longest run of one stream from there, up to `maxBytes`; undefined at the end. */
  read(cursor: Cursor, maxBytes: number): Piece | undefined {
    if (cursor.position >= this.#size || maxBytes <= 0) return undefined;
    // A head more than asked for: the piece may begin within a record.
    const bytes = this.#bytesAt(cursor.position, cursor.skip + maxBytes + HEAD_BYTES);
    const pieces: Buffer[] = [];
    let length = 0;
    let at = 0;
    let { skip } = cursor;
    const first = recordAt(bytes, 0);
    if (first === undefined) return undefined;
    for (let record: OutputRecord | undefined = first; record?.stream === first.stream; record = recordAt(bytes, at)) {
      const data = bytes.subarray(record.start + skip, Math.min(record.end, record.start + skip + maxBytes - length));
      pieces.push(data);
      length += data.length;
      if (record.start + skip + data.length < record.end) {
        skip += data.length;
        break;
      }
      at = record.end;
      skip = 0;
      if (length >= maxBytes) break;
    }
    const piece: Piece = { stream: first.stream, offset: cursor.offset, data: Buffer.concat(pieces, length) };
    cursor.offset += length;
    cursor.position += at;
    cursor.skip = skip;
    return length === 0 ? undefined : piece;
  }

  close(): void {
    if (this.#fd !== undefined) closeSync(this.#fd);
    this.#fd = undefined;
  }

  remove(): void {
    if (this.#fd === undefined) return;
    this.close();
    rmSync(this.#path, { force: true });
  }

  /** Heads are looked at one after the other, and there may be millions of them. */
  #head(position: number): OutputRecord | undefined {
    const end = this.#window.position + this.#window.bytes.length;
    if (position < this.#window.position || position + HEAD_BYTES > end)
      this.#window = { position, bytes: this.#bytesAt(position, WINDOW_BYTES) };
    const record = recordAt(this.#window.bytes, position - this.#window.position);
    if (record === undefined) return undefined;
    const by = this.#window.position;
    return by + record.end > this.#size ? undefined : { ...record, start: by + record.start, end: by + record.end };
  }

  #bytesAt(position: number, most: number): Buffer {
    const bytes = Buffer.allocUnsafe(Math.max(0, Math.min(most, this.#size - position)));
    const read =
      bytes.length === 0 || this.#fd === undefined ? 0 : readSync(this.#fd, bytes, 0, bytes.length, position);
    return bytes.subarray(0, read);
  }
}
