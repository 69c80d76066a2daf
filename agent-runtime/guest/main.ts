/**
 * The guest: beside the user's commands, in the user's image. Connects to the broker's socket (again and again), and does
 * one thing at a time: sync, run, scan, offer, settle. What it says is believed only as what this sandbox says of itself.
 */
import { randomUUID } from 'node:crypto';
import { connect, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { frameWriter, MAX_FRAME_DOWN_BYTES, readFrames } from '../frames.ts';
import type { CommandPlace } from './command.ts';
import { Guest } from './guest.ts';
import { hasOwnNamespace } from './processes.ts';

const environment = process.env;
const place: CommandPlace = {
  root: environment['LATHE_WORKSPACE_DIR'] ?? '/workspace',
  home: environment['HOME'] ?? '/tmp',
  path: environment['PATH'] ?? '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
  scope: environment['LATHE_PROCESS_SCOPE'] === 'descendants' ? 'descendants' : 'pid-namespace',
};
const path = environment['LATHE_SOCKET'] ?? '/run/lathe/guest.sock';
if (place.scope === 'pid-namespace' && !hasOwnNamespace()) {
  process.stderr.write(
    'guest: after a command everything in this PID namespace is killed, and it is not our own; set LATHE_PROCESS_SCOPE=descendants\n',
  );
  process.exit(1);
}
// Files of ours are made with the modes we name, less nothing.
process.umask(0o022);

const guest = new Guest(place, randomUUID());
for (let attempt = 0; ; attempt += 1) {
  const connected = await serve().catch(() => false);
  if (connected) attempt = 0;
  await delay(Math.min(1_000, 10 * 2 ** Math.min(attempt, 7)) * (0.5 + Math.random() / 2));
}

/** One connection pair's life. */
async function serve(): Promise<boolean> {
  const sockets: Socket[] = [];
  try {
    const control = await open(sockets);
    const bulk = await open(sockets);
    const writeBulk = frameWriter(bulk);
    void writeBulk({
      $case: 'content',
      value: { sha256: Buffer.alloc(0), offset: 0n, data: Buffer.alloc(0), last: true, error: '' },
    });
    guest.attach(frameWriter(control), writeBulk);
    await Promise.race([pump(control), pump(bulk)]);
    return true;
  } finally {
    guest.detach();
    for (const socket of sockets) socket.destroy();
  }
}

async function pump(socket: Socket): Promise<void> {
  for await (const frame of readFrames(socket, MAX_FRAME_DOWN_BYTES)) await guest.receive(frame);
}

function open(sockets: Socket[]): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect(path);
    sockets.push(socket);
    socket.once('connect', () => resolve(socket)).once('error', reject);
  });
}
