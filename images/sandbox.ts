/** `lathe.dev/sandbox`: what commands run in where nobody names an image. */
import { cp, mkdir, symlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { NODE, NODE_VERSION } from './base.ts';
import { debianLayer, type DebianOptions } from './debian.ts';
import { keyOf, layerOf, place, type Layer, type Workshop } from './layers.ts';
import { repository, type Recipe } from './recipe.ts';

const DEBIAN: DebianOptions = {
  name: 'sandbox',
  packages: [
    'bash',
    'build-essential',
    'ca-certificates',
    'curl',
    'file',
    'git',
    'jq',
    'less',
    'openssh-client',
    'patch',
    'procps',
    'python3',
    'python3-pip',
    'python3-venv',
    'ripgrep',
    'unzip',
    'xz-utils',
  ],
  hooks: [
    'chroot "$1" groupadd --gid 65532 lathe',
    'chroot "$1" useradd --uid 65532 --gid 65532 --create-home --shell /bin/bash lathe',
    'mkdir "$1"/workspace && chown 65532:65532 "$1"/workspace',
    // Thirteen files that nobody reads would be in the first diff of every repository.
    'rm -f "$1"/usr/share/git-core/templates/hooks/*.sample',
  ],
};
const NPM = repository('node_modules/npm');

/** The root is read-only: what tools install "globally" goes to the home, which is a volume. */
const SETTINGS: Readonly<Record<string, string>> = {
  'etc/gitconfig':
    '[safe]\n\tdirectory = *\n[user]\n\tname = Lathe\n\temail = lathe@localhost\n[init]\n\tdefaultBranch = main\n',
  'etc/pip.conf': '[global]\nbreak-system-packages = true\ndisable-pip-version-check = true\n',
  'usr/local/lib/node_modules/npm/npmrc': 'prefix=${HOME}/.local\nupdate-notifier=false\nfund=false\naudit=false\n',
};

export const sandbox: Recipe = {
  layers: async (workshop, signal) => [await debianLayer(DEBIAN, workshop, signal), await tools(workshop, signal)],
  config: {
    Cmd: ['bash'],
    Env: ['PATH=/home/lathe/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', 'LANG=C.UTF-8'],
    User: '65532:65532',
    WorkingDir: '/workspace',
  },
};

/** Node, npm and npx of the versions that we run ourselves. */
async function tools(workshop: Workshop, signal: AbortSignal): Promise<Layer> {
  const key = await keyOf('sandbox', [], [NODE_VERSION, join(NPM, 'package.json'), fileURLToPath(import.meta.url)]);
  return await layerOf(
    workshop,
    key,
    async (root) => {
      await place(NODE, join(root, 'usr/local/bin/node'));
      await cp(NPM, join(root, 'usr/local/lib/node_modules/npm'), { recursive: true });
      for (const name of ['npm', 'npx'])
        await symlink(`../lib/node_modules/npm/bin/${name}-cli.js`, join(root, 'usr/local/bin', name));
      for (const [path, text] of Object.entries(SETTINGS)) {
        await mkdir(dirname(join(root, path)), { recursive: true });
        await writeFile(join(root, path), text);
      }
    },
    signal,
  );
}
