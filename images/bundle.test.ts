import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { bundle, type PROGRAMS } from './bundle.ts';
import { withFolder } from './layers.ts';

/** As in an image: one file, no node_modules above it. */
async function bundledIn(folder: string, name: keyof typeof PROGRAMS): Promise<string> {
  await writeFile(join(folder, 'package.json'), '{"type":"module"}');
  return await bundle(name, folder);
}

test.for<['lathe' | 'broker', RegExp]>([
  ['lathe', /usage: lathe operator\|turns\|api\|migrate/],
  ['broker', /LATHE_/],
])('the bundle of %s starts without node_modules and says what it lacks', { timeout: 20_000 }, ([name, says]) =>
  withFolder(async (folder) => {
    const program = await bundledIn(folder, name);
    const { status, stdout, stderr } = spawnSync(process.execPath, [program], { env: {}, timeout: 15_000 });
    const said = `${stdout}${stderr}`;
    expect(status, said).toBeGreaterThan(0);
    expect(said).toMatch(says);
  }),
);

test('the bundle of the guest starts without node_modules and calls the broker', { timeout: 20_000 }, () =>
  withFolder(async (folder) => {
    const program = await bundledIn(folder, 'guest');
    const socket = join(folder, 'guest.sock');
    const broker = createServer().listen(socket);
    await once(broker, 'listening');
    const guest = spawn(process.execPath, [program], {
      env: { LATHE_SOCKET: socket, LATHE_WORKSPACE_DIR: folder, LATHE_PROCESS_SCOPE: 'descendants' },
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    let said = '';
    guest.stderr.setEncoding('utf8').on('data', (text: string) => (said += text));
    const ended = once(guest, 'exit').then(() => `ended: ${said}`);
    try {
      expect(await Promise.race([once(broker, 'connection').then(() => 'called'), ended])).toBe('called');
    } finally {
      guest.kill('SIGKILL');
      await ended;
      broker.close();
    }
  }),
);
