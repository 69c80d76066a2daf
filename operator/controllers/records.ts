/** Records that outlive their objects: which one a Workspace goes on with, and which ones go. */
import { setTimeout as delay } from 'node:timers/promises';
import { DEFAULTS } from '../../crds/defaults.ts';
import { parseDuration } from '../../crds/quantity.ts';
import type { WorkspaceSpec } from '../../crds/types.ts';
import type { ControlStore, DeletedRecord, RecordRow } from '../store/control-store.ts';
import type { Logger } from '../telemetry/log.ts';
import type { Problem } from './effective.ts';

/** A record whose namespace was made anew (a restore, a migration) waits for a person at least this long. */
const ORPHAN_MS = 30 * 24 * 3_600_000;
const LOOK_MS = 60_000;

export type Claimant = Readonly<{
  uid: string;
  name: string;
  namespaceUid: string;
  adoptFrom: string | undefined;
}>;

/** Pure. What is adopted, if anything; or why the Workspace has to wait. */
export function recordFor(claimant: Claimant, found: readonly RecordRow[]): Readonly<{ adopt?: string }> | Problem {
  const { uid, name, namespaceUid, adoptFrom } = claimant;
  // It was seen before: nothing is looked for again.
  if (found.some((record) => record.uid === uid)) return {};
  if (adoptFrom !== undefined && adoptFrom !== 'None') {
    const record = found.find(({ id }) => id === adoptFrom);
    if (record === undefined)
      return {
        reason: 'NotFound',
        message: `spec.adoptFrom: no record ${adoptFrom} is kept for this namespace; it was purged, or is of another one`,
      };
    if (record.deleted_at === null)
      return {
        reason: 'Conflict',
        message: `spec.adoptFrom: record ${adoptFrom} is that of Workspace ${record.name}; delete that one first`,
      };
    return { adopt: record.id };
  }
  const orphan = found.find((record) => record.name === name && record.namespace_uid !== namespaceUid);
  if (orphan === undefined || adoptFrom === 'None') return {};
  return {
    reason: 'OrphanFound',
    message:
      `a namespace of this name had a Workspace ${name}: record ${orphan.id}, ${orphan.files} files, ${orphan.bytes} bytes; ` +
      `make this one with spec.adoptFrom: ${orphan.id} to go on with it, or None to start empty`,
  };
}

/** Pure. */
export function isDue({ spec, deletedMs, orphan }: DeletedRecord): boolean {
  const kept =
    parseDuration((spec satisfies WorkspaceSpec).retention ?? DEFAULTS.retention) ?? Number.POSITIVE_INFINITY;
  return deletedMs >= (orphan ? Math.max(kept, ORPHAN_MS) : kept);
}

/** Purges what is due and collects what nothing names, a step at a time, until the signal aborts. */
export async function runRetention(
  { store, log }: Readonly<{ store: ControlStore; log: Logger }>,
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    try {
      for (const record of (await store.deletedRecords()).filter(isDue)) {
        while (!signal.aborted && !(await store.purgeRecord(record.id)));
        log.info('a record was purged', { workspace: record.id });
      }
      while (!signal.aborted && (await store.collectBlobs()) > 0);
    } catch (err) {
      log.warn('what is due was not purged', { err });
    }
    await delay(LOOK_MS, undefined, { signal }).catch(() => undefined);
  }
}
