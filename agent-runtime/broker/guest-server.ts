/** The unix socket for the guest. Two connections make a link: control, and bulk (whose first frame is an empty content). */
import { chmod, rm } from 'node:fs/promises';
import { createServer, type Server, type Socket } from 'node:net';
import { readFrames, writeFrame, type Frame } from '../frames.ts';
import type { Broker, GuestLink } from './broker.ts';

export async function serveGuest(path: string, broker: Broker): Promise<Server> {
  let bulk = Promise.withResolvers<Socket>();
  let bulkSocket: Socket | undefined;
  const server = createServer((socket) => void serve(socket).catch(() => socket.destroy()));
  await rm(path, { force: true });
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(path, resolve));
  // The guest runs as another user of the same group; nobody else shares the folder.
  await chmod(path, 0o660);
  return server;

  async function serve(socket: Socket): Promise<void> {
    let link: GuestLink | undefined;
    try {
      for await (const frame of readFrames(socket)) {
        if (frame.$case === 'hello') {
          link = linkOf(socket);
          broker.attachGuest(link, frame.value);
        } else if (frame.$case === 'content') {
          if (frame.value.sha256.length === 0) {
            bulkSocket = socket;
            bulk.resolve(socket);
          } else await broker.contentFromGuest(frame.value);
        } else if (frame.$case === 'up' && frame.value.message !== undefined && link !== undefined)
          broker.fromGuest(frame.value.message);
      }
    } finally {
      if (link !== undefined) broker.detachGuest(link);
      if (bulkSocket === socket) {
        bulkSocket = undefined;
        bulk = Promise.withResolvers();
      }
      socket.destroy();
    }
  }

  function linkOf(control: Socket): GuestLink {
    return {
      // Bounded by what the owner sends: one command at a time, its tree in pages.
      send: (frame: Frame) => void writeFrame(control, frame),
      // Its connection may be a moment behind the control's.
      content: async (content) =>
        await writeFrame(bulkSocket ?? (await bulk.promise), { $case: 'content', value: content }),
    };
  }
}
