/** Guest ⇄ broker: length-prefixed messages over a unix socket. */
import type { Socket } from 'node:net';
import { GuestFrame } from '../proto/gen/lathe/sandbox/v1/sandbox.ts';

export type Frame = NonNullable<GuestFrame['frame']>;

/** What a guest may send: bulk pieces are 256 KiB, offers as much. With its envelope it fits the owner's limit. */
export const MAX_FRAME_UP_BYTES = 320 * 1024;
/** What a broker passes down: the owner's messages are at most 512 KiB, and have our envelope around them. */
export const MAX_FRAME_DOWN_BYTES = 513 * 1024;

/** Frames as they arrive. Ends with the socket; throws when the peer sends what is no frame, or one over the limit. */
export async function* readFrames(socket: Socket, maxBytes: number): AsyncIterable<Frame> {
  let held: Buffer[] = [];
  let heldBytes = 0;
  /** Of the frame that is not whole yet, with its head. */
  let needed = 4;
  for await (const chunk of socket as AsyncIterable<Buffer>) {
    held.push(chunk);
    heldBytes += chunk.length;
    if (heldBytes < needed) continue;
    let bytes = held.length === 1 ? chunk : Buffer.concat(held, heldBytes);
    needed = 4;
    while (bytes.length >= 4) {
      const length = bytes.readUInt32BE(0);
      if (length > maxBytes) throw new Error(`a frame of ${length} bytes is over the limit of ${maxBytes}`);
      if (bytes.length < 4 + length) {
        needed = 4 + length;
        break;
      }
      const { frame } = GuestFrame.decode(bytes.subarray(4, 4 + length));
      bytes = bytes.subarray(4 + length);
      if (frame !== undefined) yield frame;
    }
    held = bytes.length === 0 ? [] : [bytes];
    heldBytes = bytes.length;
  }
}

/** @returns undefined when the socket takes more, else what resolves once it does; a peer that does not read holds its sender. */
export type WriteFrame = (frame: Frame) => Promise<void> | undefined;

export function frameWriter(socket: Socket): WriteFrame {
  let room: PromiseWithResolvers<void> | undefined;
  const resolve = () => {
    room?.resolve();
    room = undefined;
  };
  socket.on('drain', resolve).on('close', resolve);
  // Its reader says what happened.
  socket.on('error', () => undefined);
  return (frame) => {
    if (socket.destroyed) return undefined;
    const body = GuestFrame.encode({ frame }).finish();
    const head = Buffer.allocUnsafe(4);
    head.writeUInt32BE(body.length, 0);
    socket.cork();
    socket.write(head);
    const more = socket.write(body);
    socket.uncork();
    if (more && !socket.writableNeedDrain) return undefined;
    room ??= Promise.withResolvers();
    return room.promise;
  };
}
