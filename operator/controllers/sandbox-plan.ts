/** What to do about a sandbox, and what to say of it. Pure and total. */
import type { NewCondition } from '../kube/conditions.ts';
import type { Pod } from './resources.ts';

export type PodSeen = Readonly<{
  name: string;
  uid: string;
  terminating: boolean;
  ended: boolean;
  workRestarts: number;
  trouble: Trouble | undefined;
  ready: boolean;
}>;
export type Trouble = Readonly<{ reason: string; message: string }>;
/** All that one pass knows. Times by the database's clock. */
export type Observed = Readonly<{
  operatingMode: 'Running' | 'Suspended';
  demanded: boolean;
  closed: boolean;
  activity: bigint;
  idleMs: number;
  idleTimeoutMs: number;
  ageMs: number | undefined;
  maxLifetimeMs: number;
  openExecutions: number;
  runningTurn: string | undefined;
  /** What the row says its pod is. */
  podUid: string | undefined;
  pod: PodSeen | undefined;
  attached: boolean;
}>;
export type Action =
  | Readonly<{ do: 'revoke'; podUid: string }>
  | Readonly<{ do: 'createPod' }>
  | Readonly<{ do: 'close'; seen: bigint }>
  | Readonly<{ do: 'deletePod'; name: string; uid: string; why: string }>
  | Readonly<{ do: 'recheck'; afterMs: number }>;

/** A container that died this often in one pod is not started again in place: its back-off grows. */
const MAX_RESTARTS = 2;

export function planSandbox(o: Observed): readonly Action[] {
  const gone = o.pod === undefined || o.pod.terminating || o.pod.ended;
  const actions: Action[] = [];
  // Its token is worth nothing from here on, before anything takes its place.
  if (o.podUid !== undefined && (gone || o.pod?.uid !== o.podUid)) actions.push({ do: 'revoke', podUid: o.podUid });
  if (o.pod?.ended === true && !o.pod.terminating)
    actions.push({ do: 'deletePod', name: o.pod.name, uid: o.pod.uid, why: 'Ended' });
  if (gone) return wanted(o) ? [...actions, { do: 'createPod' }] : actions;
  const pod = o.pod;
  if (pod === undefined) return actions;
  if (pod.workRestarts >= MAX_RESTARTS)
    return [...actions, { do: 'deletePod', name: pod.name, uid: pod.uid, why: 'Restarting' }];

  const busy = o.runningTurn !== undefined || o.openExecutions > 0;
  const old = o.ageMs !== undefined && o.ageMs >= o.maxLifetimeMs;
  const idle = o.idleMs >= o.idleTimeoutMs;
  const requested = o.operatingMode === 'Suspended';
  // The pod may hold the only copy of a result (invariant 1): it stays until that is stored, whoever asked.
  if (busy && o.openExecutions > 0) return actions;
  if (o.closed || requested || (!busy && (old || idle))) {
    if (!o.closed)
      return [
        ...actions,
        { do: 'close', seen: o.activity },
        { do: 'deletePod', name: pod.name, uid: pod.uid, why: requested ? 'Requested' : old ? 'Retired' : 'Idle' },
      ];
    return [...actions, { do: 'deletePod', name: pod.name, uid: pod.uid, why: requested ? 'Requested' : 'Idle' }];
  }
  if (busy) return actions;
  return [
    ...actions,
    { do: 'recheck', afterMs: Math.max(1_000, Math.min(o.idleTimeoutMs - o.idleMs, o.maxLifetimeMs - (o.ageMs ?? 0))) },
  ];
}

function wanted(o: Observed): boolean {
  return o.demanded && !o.closed && o.operatingMode === 'Running';
}

/** For `kubectl describe`; `failure`: what the API server said when the pod could not be made. */
export function sandboxConditions(
  o: Observed,
  failure: Trouble | undefined,
  generation: number,
): readonly NewCondition[] {
  const of = (type: string, status: 'True' | 'False', reason: string, message: string): NewCondition => ({
    type,
    status,
    reason,
    message,
    observedGeneration: generation,
  });
  const trouble = failure ?? o.pod?.trouble;
  const suspended = o.pod === undefined && !wanted(o);
  if (trouble !== undefined)
    return [of('Ready', 'False', trouble.reason, trouble.message), of('Suspended', 'False', trouble.reason, '')];
  if (suspended) {
    const reason = o.operatingMode === 'Suspended' ? 'Requested' : 'Idle';
    return [
      of('Ready', 'False', reason, 'it has no pod; a command makes one'),
      of('Suspended', 'True', reason, 'files are in the store (and on the volume, if there is one)'),
    ];
  }
  if (o.attached)
    return [
      of('Ready', 'True', 'Attached', 'its broker is attached to the turn controller'),
      of('Suspended', 'False', 'InUse', ''),
    ];
  return [of('Ready', 'False', 'Starting', 'its pod is starting'), of('Suspended', 'False', 'InUse', '')];
}

export function phaseOf(o: Observed): 'Pending' | 'Starting' | 'Running' | 'Suspended' {
  if (o.pod === undefined) return wanted(o) ? 'Pending' : 'Suspended';
  return o.attached ? 'Running' : 'Starting';
}

const PULL = [
  'ErrImagePull',
  'ImagePullBackOff',
  'InvalidImageName',
  'ErrImageNeverPull',
  'ImageInspectError',
  'RegistryUnavailable',
];

/** What of a pod matters here, the cluster's own words included. */
export function seePod(pod: Pod): PodSeen {
  const statuses = pod.status?.containerStatuses ?? [];
  const work = statuses.find((s) => s.name === 'work');
  const unscheduled = pod.status?.conditions?.find((c) => c.type === 'PodScheduled' && c.status === 'False');
  const waiting = statuses.flatMap((s) =>
    s.state?.waiting?.reason === undefined
      ? []
      : [{ name: s.name, reason: s.state.waiting.reason, message: s.state.waiting.message ?? '' }],
  );
  const pull = waiting.find((w) => PULL.includes(w.reason));
  const other = waiting.find(
    (w) => !PULL.includes(w.reason) && !['ContainerCreating', 'PodInitializing'].includes(w.reason),
  );
  const trouble =
    unscheduled !== undefined
      ? {
          reason: 'SandboxUnschedulable',
          message: unscheduled.message ?? unscheduled.reason ?? 'the scheduler found no node',
        }
      : pull !== undefined
        ? { reason: 'ImagePullFailed', message: `container ${pull.name}: ${pull.message || pull.reason}` }
        : other !== undefined
          ? {
              reason: 'SandboxLost',
              message: `container ${other.name} does not start (${other.reason}): ${other.message}`,
            }
          : undefined;
  return {
    name: pod.metadata.name,
    uid: pod.metadata.uid,
    terminating: pod.metadata.deletionTimestamp !== undefined,
    ended: pod.status?.phase === 'Failed' || pod.status?.phase === 'Succeeded',
    workRestarts: work?.restartCount ?? 0,
    trouble,
    ready: statuses.length > 0 && statuses.every((s) => s.ready),
  };
}
