/** What a guest says of itself, cut to what may be passed on: it ends up in the owner's hello and in a row. */
import type { GuestStatus } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';

const MAX_FACTS = 32;
const MAX_KEY = 64;
const MAX_VALUE = 256;

export const NO_GUEST: GuestStatus = { connected: false, work: '', syncedVersion: 0n, facts: {} };

export function statusOf(said: GuestStatus): GuestStatus {
  return {
    connected: true,
    work: said.work.slice(0, MAX_KEY),
    syncedVersion: said.syncedVersion,
    facts: Object.fromEntries(
      Object.entries(said.facts)
        .slice(0, MAX_FACTS)
        .map(([key, value]) => [key.slice(0, MAX_KEY), value.slice(0, MAX_VALUE)]),
    ),
  };
}

/** The same guest, whose tree has to be compared. */
export function unsynced(status: GuestStatus): GuestStatus {
  return { ...status, syncedVersion: 0n, facts: { ...status.facts, synced: 'false' } };
}

export function synced(status: GuestStatus, version: bigint): GuestStatus {
  return { ...status, syncedVersion: version, facts: { ...status.facts, synced: 'true' } };
}
