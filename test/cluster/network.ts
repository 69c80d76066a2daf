/** The cluster's own network namespace, linked to the machine by one pair of virtual devices. */
import { existsSync } from 'node:fs';
import type { Layout } from './layout.ts';
import { run } from './run.ts';

/** The words that run a program inside the cluster's network; mounts stay the machine's, the kubelet needs them shared. */
export const inNetwork = (layout: Layout): readonly [string, ...string[]] => [
  'nsenter',
  `--net=/run/netns/${layout.netns}`,
];

export async function networkUp(layout: Layout, signal: AbortSignal): Promise<void> {
  if (existsSync(`/run/netns/${layout.netns}`)) return;
  const inside = (...command: [string, ...string[]]) => run([...inNetwork(layout), ...command], signal);
  await run(['ip', 'netns', 'add', layout.netns], signal);
  await run(
    ['ip', 'link', 'add', layout.hostLink, 'type', 'veth', 'peer', 'name', layout.nodeLink, 'netns', layout.netns],
    signal,
  );
  await run(['ip', 'address', 'add', `${layout.hostAddress}/30`, 'dev', layout.hostLink], signal);
  await run(['ip', 'link', 'set', layout.hostLink, 'up'], signal);
  await run(['ip', 'route', 'replace', layout.network, 'via', layout.nodeAddress, 'dev', layout.hostLink], signal);
  await inside('ip', 'link', 'set', 'lo', 'up');
  await inside('ip', 'address', 'add', `${layout.nodeAddress}/30`, 'dev', layout.nodeLink);
  await inside('ip', 'link', 'set', layout.nodeLink, 'up');
  await inside('ip', 'route', 'add', 'default', 'via', layout.hostAddress);
  for (const setting of ['net.ipv4.ip_forward=1', 'net.bridge.bridge-nf-call-iptables=1'])
    await inside('sysctl', '-q', '-w', setting);
}

export async function networkDown(layout: Layout, signal: AbortSignal): Promise<void> {
  // The pair of devices ends with either end; bridges, rules and sets end with the namespace.
  await run(['ip', 'link', 'delete', layout.hostLink], signal).catch(() => undefined);
  if (existsSync(`/run/netns/${layout.netns}`)) await run(['ip', 'netns', 'delete', layout.netns], signal);
}
