import { expect, test } from 'vitest';
import type { EffectiveSpec } from '../../crds/types.ts';
import { buildPod, podName, type PodInput } from './pod.ts';

const effective: EffectiveSpec = {
  class: 'c',
  image: 'image',
  resources: { cpu: '1', memory: '1Gi', disk: '2Gi' },
  volume: { mode: 'Ephemeral', size: '3Gi' },
  files: { ignored: [], maxFileSize: '1', maxTotalSize: '1', maxFiles: 1, deletions: { ratio: 1, atLeast: 1 } },
  sandbox: { idleTimeout: '5m', maxLifetime: '1h' },
};
const input: PodInput = {
  sandbox: {
    metadata: { name: 'billing', namespace: 'team', uid: 'u1', resourceVersion: '1' },
    spec: { workspace: 'billing' },
  },
  sandboxId: 'row',
  workspaceId: 'record',
  seq: 1,
  effective,
  classSpec: {},
  claimName: undefined,
  runtimeImage: 'runtime',
  turns: { clusterIp: '10.0.0.1', host: 'lathe-turns.lathe-system.svc', port: 8443, ca: 'CA' },
};

test('K4: names are short and deterministic, whatever the workspace is called', () => {
  const of = (name: string, seq: number) => podName({ metadata: { name, uid: 'u' } }, seq);
  expect(of('a', 1)).toBe(of('a', 1));
  expect(of('a', 1)).not.toBe(of('a', 2));
  expect(of('w'.repeat(50), 1).length).toBeLessThanOrEqual(63);
  expect(of(`${'w'.repeat(39)}-x`, 1)).toMatch(/^w{39}-[0-9a-f]{10}$/);
});

test('SB6, SB7: both containers are rootless, without capabilities, privileges or a writable root', () => {
  for (const container of buildPod(input).spec?.containers ?? []) {
    expect(container.securityContext).toMatchObject({
      allowPrivilegeEscalation: false,
      readOnlyRootFilesystem: true,
      runAsNonRoot: true,
      capabilities: { drop: ['ALL'] },
      seccompProfile: { type: 'RuntimeDefault' },
    });
    expect(container.securityContext?.runAsUser).toBeGreaterThan(0);
    expect(container.resources?.limits).toHaveProperty('memory');
  }
});

test('SB8: what the user asked for is requested and is the limit', () => {
  const work = buildPod(input).spec?.containers[1];
  expect(work?.resources?.requests).toEqual({ cpu: '1', memory: '1Gi', 'ephemeral-storage': '2Gi' });
  expect(work?.resources?.limits).toEqual(work?.resources?.requests);
});

test('S1: the token is mounted in the broker alone, and the work container can only connect to its socket', () => {
  const [broker, work] = buildPod(input).spec?.containers ?? [];
  expect(broker?.name).toBe('broker');
  expect(broker?.volumeMounts?.some((m) => m.name === 'token')).toBe(true);
  expect(work?.volumeMounts?.filter((m) => ['token', 'state'].includes(m.name))).toEqual([]);
  expect(work?.volumeMounts?.find((m) => m.name === 'socket')?.readOnly).toBe(true);
  expect(work?.env?.some((e) => /TOKEN|CA|TURNS/.test(e.name))).toBe(false);
  expect(broker?.securityContext?.runAsUser).not.toBe(work?.securityContext?.runAsUser);
});

test('FW13: a claim is mounted in two folders of its own; without one the workspace is an emptyDir', () => {
  const mounts = (claimName: string | undefined) =>
    buildPod({ ...input, claimName }).spec?.containers[1]?.volumeMounts ?? [];
  expect(mounts('billing').find((m) => m.mountPath === '/workspace')).toMatchObject({
    name: 'workspace',
    subPath: 'tree',
  });
  expect(mounts('billing').find((m) => m.mountPath === '/home/lathe')).toMatchObject({
    name: 'workspace',
    subPath: 'home',
  });
  expect(buildPod(input).spec?.volumes?.find((v) => v.name === 'workspace')).toMatchObject({
    emptyDir: { sizeLimit: '3Gi' },
  });
});

test('what a class says of its pods is in the pod, and labels of ours win', () => {
  const pod = buildPod({
    ...input,
    classSpec: {
      userNamespaces: 'Required',
      runtimeClassName: 'gvisor',
      nodeSelector: { a: 'b' },
      podLabels: { team: 'x', 'lathe.dev/workspace': 'forged' },
    },
  });
  expect(pod.spec).toMatchObject({ hostUsers: false, runtimeClassName: 'gvisor', nodeSelector: { a: 'b' } });
  expect(pod.metadata).toMatchObject({ labels: { team: 'x', 'lathe.dev/workspace': 'billing' } });
});
