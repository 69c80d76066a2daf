/** Git and ssh for the server, which clones what workspaces hold at first: the programs, their libraries, and no more. */
import { mkdir, symlink } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { run } from '../test/cluster/run.ts';
import { LIBRARIES, LOADER } from './base.ts';
import { unpackDebian } from './debian.ts';
import { keyOf, layerOf, place, withFolder, type Layer, type Workshop } from './layers.ts';

const PACKAGES = ['git', 'openssh-client'];
/** From Debian to where `PATH=/bin` and git itself look for them. Everything else of git is in its one program. */
const PROGRAMS: Readonly<Record<string, string>> = {
  'usr/bin/git': 'bin/git',
  'usr/bin/ssh': 'bin/ssh',
  'usr/lib/git-core/git-remote-http': 'usr/lib/git-core/git-remote-http',
};

/** On top of the base, whose loader and C library these use. */
export async function gitLayer(workshop: Workshop, signal: AbortSignal): Promise<Layer> {
  const key = await keyOf('git', PACKAGES, [fileURLToPath(import.meta.url)]);
  return await layerOf(workshop, key, (root) => fill(root, workshop, signal), signal);
}

async function fill(root: string, workshop: Workshop, signal: AbortSignal): Promise<void> {
  workshop.say('taking git and ssh out of Debian packages (once) …');
  await withFolder(async (folder) => {
    const debian = join(folder, 'debian');
    await unpackDebian(PACKAGES, debian, signal);
    for (const [from, to] of Object.entries(PROGRAMS)) {
      await place(join(debian, from), join(root, to));
      for (const library of await librariesOf(join(debian, from), debian, signal))
        await place(library, join(root, 'lib', basename(library)));
    }
  });
  await symlink('git-remote-http', join(root, 'usr/lib/git-core/git-remote-https'));
  // ssh wants to change into it, and to find nothing there.
  await mkdir(join(root, 'home/lathe'), { recursive: true });
}

/** As their own loader finds them in their own tree, less what the base has. */
async function librariesOf(program: string, debian: string, signal: AbortSignal): Promise<readonly string[]> {
  const folders = ['lib/x86_64-linux-gnu', 'usr/lib/x86_64-linux-gnu'].map((path) => join(debian, path));
  const loader = join(debian, 'lib/x86_64-linux-gnu', LOADER);
  const listed = await run([loader, '--library-path', folders.join(':'), '--list', program], signal);
  return [...listed.matchAll(/^\s*(\S+) => (\S+)/gm)]
    .filter(([, name = '']) => LIBRARIES[name] === undefined && basename(name) !== LOADER)
    .map(([, , path = '']) => path);
}
