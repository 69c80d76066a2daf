/** Turns: the spec into a row, the row into the status. */
import { createHash } from 'node:crypto';
import type { TurnSpec, TurnStatus } from '../../crds/types.ts';
import type { Result } from '../kube/queue.ts';
import type { Ref } from '../kube/types.ts';
import type { Deps } from './deps.ts';
import { TURNS, type Turn } from './resources.ts';
import { writeStatus } from './status.ts';
import { pendingStatus, turnStatus } from './turn-status.ts';

/** Of rows that were made or seen for a Turn's uid; spares a query on each later look. */
const rows = new WeakMap<Deps, Map<string, string>>();
const FINISHED: readonly (string | undefined)[] = ['Completed', 'Blocked', 'Cancelled', 'Failed'];

export async function reconcileTurn(deps: Deps, ref: Ref, signal: AbortSignal): Promise<Result> {
  const turn = deps.turns.get(ref);
  if (turn === undefined) return;
  // A finished Turn never changes again, and its spec can't.
  if (
    FINISHED.includes(turn.status?.phase) &&
    turn.metadata.deletionTimestamp === undefined &&
    known(deps).get(turn.metadata.uid) === undefined
  )
    return;
  const id = await mirror(deps, turn);
  if (id === undefined) return await wait(deps, turn, signal);
  const row = await deps.store.turnProjection(id);
  if (row === undefined) return;
  const status = turnStatus(turn.status, turn.metadata.generation, row, deps.now());
  if (!(await writeStatus(deps.client, TURNS, turn, status, signal))) return;
  tell(deps, turn, status);
  if (FINISHED.includes(status.phase)) known(deps).delete(turn.metadata.uid);
}

/** Its object is gone: whatever it was doing ends. */
export async function turnDeleted(deps: Deps, turn: Turn): Promise<void> {
  known(deps).delete(turn.metadata.uid);
  await deps.store.cancelTurn(turn.metadata.uid);
}

/** What a Turn asks for, without who and how often: the same hash means the same work (RESOURCES "Turn"). */
export function specHash(spec: TurnSpec): string {
  const sorted = Object.entries(spec).toSorted(([a], [b]) => (a < b ? -1 : 1));
  return createHash('sha256').update(JSON.stringify(sorted)).digest('hex');
}

async function mirror(deps: Deps, turn: Turn): Promise<string | undefined> {
  const found = known(deps).get(turn.metadata.uid);
  if (found !== undefined) return found;
  const { namespace, name, uid } = turn.metadata;
  const workspace = deps.workspaces.get({
    ...(namespace === undefined ? {} : { namespace }),
    name: turn.spec.workspace,
  });
  const row = workspace === undefined ? undefined : await deps.store.findWorkspaceByUid(workspace.metadata.uid);
  if (row === undefined) return undefined;
  const { id } = await deps.store.upsertTurn({
    workspace: row.id,
    name,
    uid,
    spec: turn.spec,
    specHash: specHash(turn.spec),
  });
  known(deps).set(uid, id);
  return id;
}

async function wait(deps: Deps, turn: Turn, signal: AbortSignal): Promise<Result> {
  const { namespace } = turn.metadata;
  const workspace = deps.workspaces.get({
    ...(namespace === undefined ? {} : { namespace }),
    name: turn.spec.workspace,
  });
  const ready = workspace?.status?.conditions?.find((c) => c.type === 'Ready');
  const message =
    workspace === undefined
      ? `there is no Workspace ${turn.spec.workspace} in namespace ${namespace ?? ''}; it starts once there is`
      : `Workspace ${turn.spec.workspace} is not ready${ready === undefined || ready.status === 'True' ? '' : `: ${ready.message}`}`;
  const reason = workspace === undefined ? 'NotFound' : 'WorkspaceNotReady';
  // A workspace that was applied with it is mirrored in a moment: that is not worth a status.
  const young = deps.now().getTime() - Date.parse(turn.metadata.creationTimestamp ?? '') < 2_000;
  if (!young)
    await writeStatus(
      deps.client,
      TURNS,
      turn,
      pendingStatus(turn.status, turn.metadata.generation, reason, message, deps.now()),
      signal,
    );
  return { afterMs: young ? 2_000 : 30_000 };
}

function tell(deps: Deps, turn: Turn, status: TurnStatus): void {
  if (status.phase === turn.status?.phase || status.phase === undefined) return;
  const bad = status.phase === 'Failed' || status.phase === 'Blocked';
  deps.events.record(
    TURNS,
    turn,
    bad ? 'Warning' : 'Normal',
    status.phase,
    `${status.reason ?? ''}${status.message ? `: ${status.message}` : ''}`,
  );
}

function known(deps: Deps): Map<string, string> {
  const found = rows.get(deps) ?? new Map<string, string>();
  rows.set(deps, found);
  return found;
}
