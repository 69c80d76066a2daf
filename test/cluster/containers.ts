/** containerd's configuration and the two images that a cluster needs before it can have any: pause and busybox. */
import { createHash } from 'node:crypto';
import { chmod, copyFile, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Binaries } from './binaries.ts';
import type { Layout } from './layout.ts';
import { run } from './run.ts';

export const PAUSE_IMAGE = 'lathe.dev/cluster/pause:1';
export const BUSYBOX_IMAGE = 'lathe.dev/cluster/busybox:1';

export const socketOf = (layout: Layout): string => join(layout.run, 'containerd.sock');

export async function writeContainerConfig(layout: Layout, programs: Binaries): Promise<string> {
  const path = join(layout.root, 'containerd.toml');
  // Mapped users must traverse to containerd's state; containerd itself would make these 0700.
  for (const folder of [layout.root, layout.run, join(layout.root, 'containerd'), join(layout.run, 'containerd')]) {
    await mkdir(folder, { recursive: true });
    await chmod(folder, 0o711);
  }
  await writeFile(path, containerdConfig(layout, programs['runc'] ?? 'runc'));
  await mkdir(join(layout.root, 'cni'), { recursive: true });
  await writeFile(join(layout.root, 'cni', '10-lathe.conflist'), JSON.stringify(cniConfig(layout), null, 2));
  return path;
}

/** Pure. `restrict_oom_score_adj`: without CAP_SYS_RESOURCE runc can't lower the score, and every pod would die. */
export function containerdConfig(layout: Layout, runc: string): string {
  return `version = 3
root = "${layout.root}/containerd"
state = "${layout.run}/containerd"

[grpc]
  address = "${socketOf(layout)}"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "${PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  # Below our own state, so that a down finds them all.
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "${runc}"
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "${layout.root}/cni"

[plugins."io.containerd.server.v1.ttrpc"]
  address = "${socketOf(layout)}.ttrpc"
`;
}

function cniConfig(layout: Layout): object {
  return {
    cniVersion: '1.0.0',
    name: `lathe-${layout.name}`,
    plugins: [
      {
        type: 'bridge',
        bridge: 'pods',
        isGateway: true,
        ipMasq: false,
        hairpinMode: true,
        ipam: {
          type: 'host-local',
          dataDir: join(layout.root, 'cni-state'),
          ranges: [[{ subnet: layout.podNetwork, gateway: layout.podGateway }]],
          routes: [{ dst: '0.0.0.0/0' }],
        },
      },
      { type: 'portmap', capabilities: { portMappings: true } },
    ],
  };
}

/** Loads archives (docker or OCI layout) into the kubelet's namespace. */
export async function importImage(
  layout: Layout,
  programs: Binaries,
  archive: string,
  signal: AbortSignal,
): Promise<void> {
  await ctr(layout, programs, ['images', 'import', '--local', '--digests=false', archive], signal);
}

export async function listImages(
  layout: Layout,
  programs: Binaries,
  signal: AbortSignal,
): Promise<ReadonlySet<string>> {
  return new Set(
    (await ctr(layout, programs, ['images', 'list', '-q'], signal)).split('\n').filter((name) => name !== ''),
  );
}

export function ctr(layout: Layout, programs: Binaries, args: readonly string[], signal: AbortSignal): Promise<string> {
  return run([programs['ctr'] ?? 'ctr', '--address', socketOf(layout), '--namespace', 'k8s.io', ...args], signal);
}

/** Both are one static program of Debian's in an otherwise empty image. */
export async function importBaseImages(layout: Layout, programs: Binaries, signal: AbortSignal): Promise<void> {
  const there = await listImages(layout, programs, signal);
  const images = [
    { name: PAUSE_IMAGE, program: '/usr/bin/catatonit', at: 'pause', links: [], entrypoint: ['/pause', '-P'] },
    {
      name: BUSYBOX_IMAGE,
      program: '/bin/busybox',
      at: 'bin/busybox',
      links: ['sh', 'mkdir', 'rm', 'chmod', 'sleep'],
      entrypoint: [],
    },
  ];
  for (const image of images) {
    if (there.has(image.name)) continue;
    const folder = await mkdtemp(join(tmpdir(), 'lathe-image-'));
    try {
      const root = join(folder, 'root');
      await mkdir(join(root, 'bin'), { recursive: true });
      await copyFile(image.program, join(root, image.at));
      await chmod(join(root, image.at), 0o755);
      for (const link of image.links) await run(['ln', '-s', 'busybox', join(root, 'bin', link)], signal);
      await run(['tar', '-C', root, '--owner=0', '--group=0', '-cf', join(folder, 'layer.tar'), '.'], signal);
      const layer = createHash('sha256')
        .update(await readFile(join(folder, 'layer.tar')))
        .digest('hex');
      const config = {
        architecture: 'amd64',
        os: 'linux',
        config: { Entrypoint: image.entrypoint, Env: ['PATH=/bin'] },
        rootfs: { type: 'layers', diff_ids: [`sha256:${layer}`] },
      };
      await writeFile(join(folder, 'config.json'), JSON.stringify(config));
      await writeFile(
        join(folder, 'manifest.json'),
        JSON.stringify([{ Config: 'config.json', RepoTags: [image.name], Layers: ['layer.tar'] }]),
      );
      await run(
        ['tar', '-C', folder, '-cf', join(folder, 'image.tar'), 'manifest.json', 'config.json', 'layer.tar'],
        signal,
      );
      await importImage(layout, programs, join(folder, 'image.tar'), signal);
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  }
}
