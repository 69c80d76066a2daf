/** Debian root file systems, from packages alone: no registry is asked. */
import { mkdir } from 'node:fs/promises';
import { run } from '../test/cluster/run.ts';
import { cachedLayer, keyOf, type Layer, type Workshop } from './layers.ts';

export type DebianOptions = Readonly<{
  name: string;
  packages: readonly string[];
  /** Globs of files that are not unpacked. */
  without?: readonly string[];
  /** Shell commands run on the finished tree, which is "$1". */
  hooks?: readonly string[];
}>;

/** Postgres 15 is of this one; another suite means a dump and a restore for who has data. */
const SUITE = 'bookworm';
const UNREAD = ['/usr/share/doc/*', '/usr/share/man/*', '/usr/share/locale/*', '/usr/share/info/*'];
const LEAN = [
  'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/var/cache/debconf/*-old "$1"/var/log/*',
  'rm -f "$1"/etc/hostname "$1"/etc/resolv.conf',
];

export async function debianLayer(options: DebianOptions, workshop: Workshop, signal: AbortSignal): Promise<Layer> {
  const args = [
    '--variant=minbase',
    `--include=${options.packages.join(',')}`,
    ...[...UNREAD, ...(options.without ?? [])].map((glob) => `--dpkgopt=path-exclude=${glob}`),
    '--aptopt=APT::Install-Recommends "false"',
    ...[...(options.hooks ?? []), ...LEAN].map((hook) => `--customize-hook=${hook}`),
  ];
  return await cachedLayer(workshop, await keyOf(`debian-${options.name}`, [SUITE, ...args]), async (path) => {
    workshop.say(`making the Debian base of ${options.name} (once) …`);
    await mmdebstrap([...args, SUITE, path], signal);
  });
}

/** Files of packages, unpacked into `folder` and not set up: for programs that are taken out one by one. */
export async function unpackDebian(packages: readonly string[], folder: string, signal: AbortSignal): Promise<void> {
  await mkdir(folder, { recursive: true });
  await mmdebstrap(['--variant=extract', `--include=${packages.join(',')}`, SUITE, folder], signal);
}

async function mmdebstrap(args: readonly string[], signal: AbortSignal): Promise<void> {
  // Times in the tree no later than this: the same packages give the same bytes.
  const env = { SOURCE_DATE_EPOCH: '0' };
  await run(['mmdebstrap', '--quiet', '--mode=auto', ...args], signal, { env });
}
