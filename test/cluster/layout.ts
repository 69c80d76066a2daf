/** Where a built cluster keeps what, and which addresses it has. Pure; one slot per cluster on a machine. */
import { homedir } from 'node:os';
import { join } from 'node:path';

export type Layout = Readonly<{
  name: string;
  slot: number;
  /** Below no home: mapped users must be able to traverse to containerd's state. */
  root: string;
  run: string;
  logs: string;
  pids: string;
  pki: string;
  kubeconfig: string;
  auditLog: string;
  /** The cluster's own network namespace: its bridge, rules and policies end with it. */
  netns: string;
  hostLink: string;
  nodeLink: string;
  hostAddress: string;
  nodeAddress: string;
  network: string;
  podNetwork: string;
  podGateway: string;
  serviceNetwork: string;
  apiServiceAddress: string;
  cgroup: string;
}>;

export const SLOTS = 32;

/** Everything built and downloaded, kept between runs and between clusters. */
export function cacheRoot(env: Readonly<Record<string, string | undefined>> = process.env): string {
  return env['LATHE_CACHE'] ?? join(env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache'), 'lathe');
}

export const stateRoot = '/var/lib/lathe-cluster';

/** @throws Error when the name can't be part of paths and of names of links */
export function layoutOf(name: string, slot: number): Layout {
  if (!/^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$/.test(name)) {
    throw new Error(`cluster name ${JSON.stringify(name)} must be 1 to 20 of a-z, 0-9 and -, not at its ends`);
  }
  const root = join(stateRoot, name);
  const prefix = `10.${180 + slot}`;
  return {
    name,
    slot,
    root,
    run: join('/run/lathe-cluster', name),
    logs: join(root, 'logs'),
    pids: join(root, 'pids'),
    pki: join(root, 'pki'),
    kubeconfig: join(root, 'kubeconfig'),
    auditLog: join(root, 'logs', 'audit.log'),
    netns: `lathe-${name}`,
    hostLink: `lathe${slot}h`,
    nodeLink: `lathe${slot}n`,
    hostAddress: `${prefix}.0.2`,
    nodeAddress: `${prefix}.0.1`,
    network: `${prefix}.0.0/16`,
    podNetwork: `${prefix}.64.0/20`,
    podGateway: `${prefix}.64.1`,
    serviceNetwork: `${prefix}.128.0/20`,
    apiServiceAddress: `${prefix}.128.1`,
    cgroup: `/lathe-${name}`,
  };
}
