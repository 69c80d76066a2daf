import { expect, test } from 'vitest';
import { confinementFaults, readConfinement } from './confinement.ts';

const good = `uid=65532
gid=65532
capabilities=0000000000000000
noNewPrivs=1
seccomp=2
memoryLimit=536870912
cpuQuota=50000 100000
pidsLimit=max
rootReadOnly=true
credentials=none
`;

test('a confined sandbox has no faults', () => expect(confinementFaults(readConfinement(good))).toEqual([]));

test.for<[situation: string, line: string, instead: string, fault: string]>([
  ['root', 'uid=65532', 'uid=0', 'uid is 0'],
  ['a capability left', 'capabilities=0000000000000000', 'capabilities=0000000000000400', 'capabilities'],
  ['privileges can grow', 'noNewPrivs=1', 'noNewPrivs=0', 'noNewPrivs is 0'],
  ['no seccomp', 'seccomp=2', 'seccomp=0', 'seccomp is 0'],
  ['no memory limit, as cgroup v2 says it', 'memoryLimit=536870912', 'memoryLimit=max', 'memoryLimit is max'],
  ['no memory limit, as cgroup v1 says it', 'memoryLimit=536870912', 'memoryLimit=9223372036854771712', 'memoryLimit'],
  ['no CPU limit', 'cpuQuota=50000 100000', 'cpuQuota=-1', 'cpuQuota is -1'],
  ['a mounted credential', 'credentials=none', 'credentials=present', 'credentials is present'],
  ['nothing said at all', 'credentials=none', '', 'credentials is unknown'],
])('%s is named', ([, line, instead, fault]) => {
  const faults = confinementFaults(readConfinement(good.replace(line, instead)));
  expect(faults).toHaveLength(1);
  expect(faults[0]).toContain(fault);
});
