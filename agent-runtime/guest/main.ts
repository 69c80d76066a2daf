/**
 * The guest: beside the user's commands, in the user's image. Connects to the broker's socket (again and again), and does
 * one thing at a time: sync, run, scan, offer, settle. What it says is believed only as what this sandbox says of itself.
 */
import { randomUUID } from 'node:crypto';
import { connect, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { readFrames, writeFrame } from '../frames.ts';
import type { CommandPlace } from './command.ts';
import { Guest } from './guest.ts';

const environment = process.env;
const place: CommandPlace = {
  root: environment['LATHE_WORKSPACE_DIR'] ?? '/workspace',
  home: environment['HOME'] ?? '/tmp',
  path: environment['PATH'] ?? '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
  scope: environment['LATHE_PROCESS_SCOPE'] === 'descendants' ? 'descendants' : 'pid-namespace',
};
const path = environment['LATHE_SOCKET'] ?? '/run/lathe/guest.sock';
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
  const [control, bulk] = await Promise.all([open(), open()]);
  try {
    await writeFrame(bulk, {
      $case: 'content',
      value: { sha256: Buffer.alloc(0), offset: 0n, data: Buffer.alloc(0), last: true, error: '' },
    });
    guest.attach(
      (frame) => writeFrame(control, frame),
      (content) => writeFrame(bulk, { $case: 'content', value: content }),
    );
    await Promise.race([pump(control), pump(bulk)]);
    return true;
  } finally {
    guest.detach();
    control.destroy();
    bulk.destroy();
  }
}

async function pump(socket: Socket): Promise<void> {
  for await (const frame of readFrames(socket)) guest.receive(frame);
}

function open(): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect(path);
    socket.once('connect', () => resolve(socket)).once('error', reject);
  });
}
