/** The unix socket for the guest. Two connections make a link: control, and bulk (whose first frame is an empty content). */
import { chmod, rm } from 'node:fs/promises';
import { createServer, type Server, type Socket } from 'node:net';
import { frameWriter, MAX_FRAME_UP_BYTES, readFrames, type WriteFrame } from '../frames.ts';
import type { Broker, GuestLink } from './broker.ts';

/** A guest has two; whatever else connects is of the command's doing. */
const MAX_CONNECTIONS = 16;

export async function serveGuest(path: string, broker: Broker, log: (line: string) => void): Promise<Server> {
  /** The newest of each kind belong together. */
  let bulk = Promise.withResolvers<WriteFrame>();
  let bulkSocket: Socket | undefined;
  let link: GuestLink | undefined;
  const server = createServer((socket) => {
    serve(socket).catch((error: unknown) => {
      socket.destroy();
      log(`a guest's connection ended: ${error instanceof Error ? error.message : String(error)}`);
    });
  });
  server.maxConnections = MAX_CONNECTIONS;
  await rm(path, { force: true });
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(path, resolve));
  // The guest runs as another user of the same group; nobody else shares the folder.
  await chmod(path, 0o660);
  return server;

  async function serve(socket: Socket): Promise<void> {
    const write = frameWriter(socket);
    let ours: GuestLink | undefined;
    try {
      for await (const frame of readFrames(socket, MAX_FRAME_UP_BYTES)) {
        if (frame.$case === 'hello') {
          link = ours = linkOf(write);
          broker.attachGuest(ours, frame.value);
        } else if (frame.$case === 'content' && frame.value.sha256.length === 0) {
          if (bulkSocket !== undefined) bulk = Promise.withResolvers();
          bulkSocket = socket;
          bulk.resolve(write);
        } else if (frame.$case === 'content') {
          if (bulkSocket === socket && link !== undefined) await broker.contentFromGuest(link, frame.value);
        } else if (frame.$case === 'up' && ours !== undefined) broker.fromGuest(ours, frame.value);
      }
    } finally {
      if (ours !== undefined) broker.detachGuest(ours);
      if (bulkSocket === socket) {
        bulkSocket = undefined;
        bulk = Promise.withResolvers();
      }
      socket.destroy();
    }
  }

  function linkOf(control: WriteFrame): GuestLink {
    return {
      control,
      // Its connection may be a moment behind the control's.
      content: async (value) => await (await bulk.promise)({ $case: 'content', value }),
    };
  }
}
