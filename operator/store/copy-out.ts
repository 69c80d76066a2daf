/** One column of bytes in binary: as text, which is all that `pg` reads otherwise, it is twice as long and decoded twice. */
import type { Connection, PoolClient, Submittable } from 'pg';

const SIGNATURE = Buffer.from('PGCOPY\n\xff\r\n\0', 'latin1');
/** The signature, flags, and the length of an extension that there is none of. */
const HEADER_BYTES = SIGNATURE.length + 8;

/** `select` has its values in it: COPY takes no parameters. */
export function copyOut(client: PoolClient, select: string): Promise<Buffer[]> {
  return new Promise((resolve, reject) => {
    const rows: Buffer[] = [];
    // What `pg` calls as messages of this query arrive.
    const query: Submittable & Record<string, unknown> = {
      submit: (connection: Connection) => connection.query(`COPY (${select}) TO STDOUT (FORMAT binary)`),
      handleCopyData: ({ chunk }: { chunk: Buffer }) => {
        const row = rowOf(chunk);
        if (row !== undefined) rows.push(row);
      },
      handleCommandComplete: () => undefined,
      // Also when the connection breaks.
      handleError: reject,
      handleReadyForQuery: () => resolve(rows),
    };
    client.query(query);
  });
}

/** A message is a row; the first has the header before it, the last is none. It is copied: `pg` uses its buffer again. */
function rowOf(message: Buffer): Buffer | undefined {
  const at = message.subarray(0, SIGNATURE.length).equals(SIGNATURE) ? HEADER_BYTES : 0;
  if (message.length < at + 6 || message.readInt16BE(at) !== 1) return undefined;
  const length = message.readInt32BE(at + 2);
  return length < 0 ? Buffer.alloc(0) : Buffer.from(message.subarray(at + 6, at + 6 + length));
}
