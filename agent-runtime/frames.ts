/** Guest ⇄ broker: length-prefixed messages over a unix socket. */
import type { Socket } from 'node:net';
import { GuestFrame } from '../proto/gen/lathe/sandbox/v1/sandbox.ts';

export type Frame = NonNullable<GuestFrame['frame']>;

/** Of one frame. Bulk pieces are 256 KiB, offers as much. */
export const MAX_FRAME_BYTES = 512 * 1024;

/** Frames as they arrive. Ends with the socket; throws when the peer sends what is no frame. */
export async function* readFrames(socket: Socket): AsyncIterable<Frame> {
  let held: Buffer[] = [];
  let heldBytes = 0;
  for await (const chunk of socket as AsyncIterable<Buffer>) {
    held.push(chunk);
    heldBytes += chunk.length;
    let bytes = held.length === 1 ? chunk : Buffer.concat(held, heldBytes);
    while (bytes.length >= 4) {
      const length = bytes.readUInt32BE(0);
      if (length > MAX_FRAME_BYTES)
        throw new Error(`a frame of ${length} bytes is over the limit of ${MAX_FRAME_BYTES}`);
      if (bytes.length < 4 + length) break;
      const { frame } = GuestFrame.decode(bytes.subarray(4, 4 + length));
      bytes = bytes.subarray(4 + length);
      if (frame !== undefined) yield frame;
    }
    held = bytes.length === 0 ? [] : [bytes];
    heldBytes = bytes.length;
  }
}

/** Resolves once the socket takes more; a peer that does not read holds its sender. */
export async function writeFrame(socket: Socket, frame: Frame): Promise<void> {
  if (socket.destroyed) return;
  const body = GuestFrame.encode({ frame }).finish();
  const head = Buffer.allocUnsafe(4);
  head.writeUInt32BE(body.length, 0);
  socket.cork();
  socket.write(head);
  const more = socket.write(body);
  socket.uncork();
  if (!more) {
    await new Promise<void>((resolve) => {
      const done = () => {
        socket.off('drain', done).off('close', done);
        resolve();
      };
      socket.once('drain', done).once('close', done);
    });
  }
}
