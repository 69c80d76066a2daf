/** A cgroup of its own for each cluster, so that no kubelet tidies up the pods of another. */
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Layout } from './layout.ts';

const ROOT = '/sys/fs/cgroup';

export async function cgroupsUp(layout: Layout): Promise<void> {
  if (existsSync(join(ROOT, 'cgroup.controllers'))) {
    const controllers = (await readFile(join(ROOT, 'cgroup.controllers'), 'utf8')).trim().split(' ');
    const all = controllers.map((c) => `+${c}`).join(' ');
    await writeFile(join(ROOT, 'cgroup.subtree_control'), all);
    await mkdir(join(ROOT, layout.cgroup), { recursive: true });
    return await writeFile(join(ROOT, layout.cgroup, 'cgroup.subtree_control'), all);
  }
  for (const controller of await controllersV1()) {
    const folder = join(ROOT, controller, layout.cgroup);
    await mkdir(folder, { recursive: true });
    // A new cpuset is empty, and nothing can be put into an empty one.
    for (const file of ['cpuset.cpus', 'cpuset.mems']) {
      const parent = join(ROOT, controller, file);
      if (existsSync(parent)) await writeFile(join(folder, file), await readFile(parent, 'utf8'));
    }
  }
}

export async function cgroupsDown(layout: Layout): Promise<void> {
  const roots = existsSync(join(ROOT, 'cgroup.controllers'))
    ? [ROOT]
    : (await controllersV1()).map((c) => join(ROOT, c));
  for (const root of roots) await removeTree(join(root, layout.cgroup));
}

async function controllersV1(): Promise<readonly string[]> {
  const entries = await readdir(ROOT, { withFileTypes: true });
  return entries.filter((entry) => entry.isDirectory()).map((entry) => entry.name);
}

/** Leaves first; the files in a cgroup are not ours to remove and go with it. */
async function removeTree(folder: string): Promise<void> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
  for (const entry of entries) if (entry.isDirectory()) await removeTree(join(folder, entry.name));
  await rmdir(folder).catch(() => undefined);
}
