/** File contents on their way out: by hash, in pieces, one file after the other. */
import { closeSync, readSync } from 'node:fs';
import type { Content } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { openPath } from './open-path.ts';

const PIECE_BYTES = 256 * 1024;

/** The file from there on, then `last`; or `error` where it can't be had. That it still has this hash is for the owner to check. */
export async function giveFile(
  root: string,
  { sha256, path, from }: Readonly<{ sha256: Buffer; path: string | undefined; from: bigint }>,
  send: (content: Content) => Promise<void> | undefined,
): Promise<void> {
  const fail = (error: string) => send({ sha256, offset: 0n, data: Buffer.alloc(0), last: true, error });
  const fd = path === undefined ? undefined : openPath(root, path);
  if (fd === undefined) return void (await fail('the file is gone'));
  try {
    for (let offset = from; ;) {
      const piece = Buffer.allocUnsafe(PIECE_BYTES);
      const read = readSync(fd, piece, 0, piece.length, offset);
      const last = read < PIECE_BYTES;
      await send({ sha256, offset, data: piece.subarray(0, read), last, error: '' });
      offset += BigInt(read);
      if (last) return;
    }
  } catch (error) {
    await fail(error instanceof Error ? error.message : String(error));
  } finally {
    closeSync(fd);
  }
}
