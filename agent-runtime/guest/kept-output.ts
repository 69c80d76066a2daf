/** What was sent and may have to be sent again, in blocks that are let go as it arrives. */
import type { OutputStream } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { encodeRecord, recordAt } from '../output-records.ts';

type Block = { offset: bigint; records: Buffer[]; bytes: number; data: bigint };
export type Kept = Readonly<{ stream: OutputStream; offset: bigint; data: Buffer }>;

const BLOCK_BYTES = 64 * 1024;

/** Bounded by the credit that was given: an owner grants a window beyond what it has. */
export class KeptOutput {
  #blocks: Block[] = [];
  #end = 0n;

  add(stream: OutputStream, data: Buffer): void {
    let block = this.#blocks.at(-1);
    if (block === undefined || block.bytes >= BLOCK_BYTES) {
      if (block !== undefined) block.records = [Buffer.concat(block.records, block.bytes)];
      block = { offset: this.#end, records: [], bytes: 0, data: 0n };
      this.#blocks.push(block);
    }
    const record = encodeRecord(stream, data);
    block.records.push(record);
    block.bytes += record.length;
    block.data += BigInt(data.length);
    this.#end += BigInt(data.length);
  }

  /** Of what lies before it. */
  forget(offset: bigint): void {
    this.#blocks = this.#blocks.filter((block) => block.offset + block.data > offset);
  }

  *from(offset: bigint): Iterable<Kept> {
    for (const block of this.#blocks) {
      if (block.offset + block.data <= offset) continue;
      const bytes = Buffer.concat(block.records, block.bytes);
      let at = block.offset;
      for (let record = recordAt(bytes, 0); record !== undefined; record = recordAt(bytes, record.end)) {
        const data = bytes.subarray(record.start, record.end);
        const skip = at >= offset ? 0 : Math.min(data.length, Number(offset - at));
        if (skip < data.length) yield { stream: record.stream, offset: at + BigInt(skip), data: data.subarray(skip) };
        at += BigInt(data.length);
      }
    }
  }
}
