/** A Turn's status from its row. Pure; equal rows give equal statuses, so that nothing is written twice. */
import type { TurnStatus } from '../../crds/types.ts';
import { setConditions, type Condition, type NewCondition } from '../kube/conditions.ts';
import type { TurnProjection } from '../store/control-store.ts';

const ANSWER_BYTES = 4_096;
const FINISHED = ['Completed', 'Blocked', 'Cancelled', 'Failed'];

/** Of a turn whose workspace is not there yet. */
export function pendingStatus(
  before: TurnStatus | undefined,
  generation: number | undefined,
  reason: string,
  message: string,
  now: Date,
): TurnStatus {
  return {
    ...before,
    ...(generation === undefined ? {} : { observedGeneration: generation }),
    phase: 'Pending',
    reason,
    message,
    conditions: conditionsOf(before, 'Pending', reason, message, generation, now),
  };
}

export function turnStatus(
  before: TurnStatus | undefined,
  generation: number | undefined,
  row: TurnProjection,
  now: Date,
): TurnStatus {
  const waiting = row.phase === 'Running' && row.sandbox_report !== null ? row.sandbox_report : undefined;
  const reason = row.reason ?? waiting?.reason ?? row.phase;
  const message = row.message ?? (waiting === undefined ? '' : `it waits for its sandbox: ${waiting.message}`);
  const answer = row.answer === null ? undefined : cut(row.answer, ANSWER_BYTES);
  return {
    ...(generation === undefined ? {} : { observedGeneration: generation }),
    phase: row.phase,
    reason,
    message,
    conditions: conditionsOf(before, row.phase, reason, message, generation, now),
    ...(answer === undefined ? {} : { answer, answerBytes: Buffer.byteLength(row.answer ?? '') }),
    ...(row.exit_code === null ? {} : { exitCode: row.exit_code }),
    ...(row.output === null ? {} : { output: row.output }),
    ...(row.steps === 0 ? {} : { steps: row.steps }),
    ...(row.usage === null || row.usage.outputTokens === 0 ? {} : { usage: row.usage }),
    ...(row.files === null ? {} : { files: { ...row.files, paths: [...row.files.paths] } }),
    ...(row.from_version === null ? {} : { fromVersion: Number(row.from_version) }),
    ...(row.to_version === null ? {} : { toVersion: Number(row.to_version) }),
    ...(row.sandbox_name === null ? {} : { sandbox: row.sandbox_name }),
    queuedAt: seconds(row.queued_at),
    ...(row.started_at === null ? {} : { startedAt: seconds(row.started_at) }),
    ...(row.finished_at === null ? {} : { finishedAt: seconds(row.finished_at) }),
  };
}

/** Finished and Succeeded for `kubectl wait`; Ready, Reconciling and Stalled for kstatus (Flux, Argo CD). */
function conditionsOf(
  before: TurnStatus | undefined,
  phase: string,
  reason: string,
  message: string,
  generation: number | undefined,
  now: Date,
): Condition[] {
  const finished = FINISHED.includes(phase);
  const succeeded = phase === 'Completed';
  const of = (type: string, holds: boolean): NewCondition => ({
    type,
    status: holds ? 'True' : 'False',
    reason,
    message,
    ...(generation === undefined ? {} : { observedGeneration: generation }),
  });
  return [
    ...setConditions(
      (before?.conditions ?? []) as readonly Condition[],
      [
        of('Finished', finished),
        of('Succeeded', succeeded),
        of('Ready', succeeded),
        of('Reconciling', !finished),
        of('Stalled', finished && !succeeded),
      ],
      now,
    ),
  ];
}

function seconds(date: Date): string {
  return `${date.toISOString().slice(0, 19)}Z`;
}

/** At a character, not in the middle of one. */
function cut(text: string, maxBytes: number): string {
  const bytes = Buffer.from(text);
  if (bytes.length <= maxBytes) return text;
  return new TextDecoder('utf-8').decode(bytes.subarray(0, maxBytes)).replace(/\uFFFD+$/, '');
}
