/** What a command can reach: nothing but its workspace. Looked at from inside, in a namespace that enforces `restricted`. */
import { readFile } from 'node:fs/promises';
import { expect, test } from 'vitest';
import { parse } from 'yaml';
import { confinementFaults, readConfinement } from '../../examples/demo/confinement.ts';
import { useWorld } from './world.ts';

const world = useWorld('confined');

async function output(name: string, command: string): Promise<string> {
  await world.apply(world.turn(name, { workspace: 'inside', command }));
  return String((await world.finished(name)).status?.['output'] ?? '');
}

test('a sandbox is rootless, without capabilities or privileges to gain, filtered and limited', async () => {
  const turn = parse(await readFile('examples/quickstart/turns/confinement.yaml', 'utf8')) as {
    spec: { command: string };
  };
  await world.apply(world.workspace('inside'));
  expect(confinementFaults(readConfinement(await output('confinement', turn.spec.command)))).toEqual([]);
});

test('S1: no token, no credential and no process of the broker can be seen from a command', async () => {
  const seen = await output(
    'credentials',
    'env | grep -ciE "token|secret|lathe_" ; find / -xdev -name token -not -path "/proc/*" 2>/dev/null | wc -l; cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\\000" " " | grep -c "[b]roker.js"',
  );
  expect(seen.trim().split('\n')).toEqual(['0', '0', '0']);
});

test("S6: the API server, other pods and the turn controller's other port are out of reach", async () => {
  const api = await world.kubectl.json<{ spec: { clusterIP: string } }>([
    '-n',
    'default',
    'get',
    'service',
    'kubernetes',
  ]);
  const turns = await world.kubectl.json<{ spec: { clusterIP: string } }>([
    '-n',
    world.installation.namespace,
    'get',
    'service',
    'lathe-turns',
  ]);
  const postgres = await world.list('pods', 'app.kubernetes.io/component=postgres', world.installation.namespace);
  const postgresIp = String(postgres[0]?.status?.['podIP']);
  const reach = (host: string, port: number) =>
    `timeout 3 bash -c 'exec 3<>/dev/tcp/${host}/${port}' 2>/dev/null && echo reached || echo closed`;
  const seen = await output(
    'network',
    [
      reach(api.spec.clusterIP, 443),
      reach(postgresIp, 5432),
      reach(turns.spec.clusterIP, 8444),
      reach(turns.spec.clusterIP, 8443),
    ].join('; '),
  );
  // The last line shows that the probe can tell: that one is open.
  expect(seen.trim().split('\n')).toEqual(['closed', 'closed', 'closed', 'reached']);
});

test('a link out of the workspace that a command plants is kept as a link and followed by nobody', async () => {
  await output('plant', 'ln -s /etc out; ln -s / root');
  expect(await output('links', 'readlink out root; rm out root; ls /etc/passwd')).toBe('/etc\n/\n/etc/passwd\n');
});
