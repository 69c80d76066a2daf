/** Waits for a sandbox that a command can be sent to. */
import { setTimeout as delay } from 'node:timers/promises';
import { FenceLost } from '../store/database.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { Logger } from '../telemetry/log.ts';
import type { OwnedWorkspace } from './ownership.ts';
import type { SandboxProvider } from './provider.ts';
import type { Meeting } from './meeting.ts';
import type { Session } from './session.ts';
import { syncTo } from './sync.ts';

/** A sandbox that is attached, with a guest whose tree equals the head. */
export async function readySession(
  deps: Readonly<{ store: WorkspaceStore; provider: SandboxProvider; log: Logger }>,
  owned: OwnedWorkspace,
  meeting: Meeting,
  signal: AbortSignal,
): Promise<Session> {
  for (;;) {
    if (meeting.session === undefined) await deps.provider.ensure(owned.workspace, signal);
    const session = await meeting.sessionThat((s) => s.guestConnected(), signal);
    try {
      await owned.settling;
      await syncTo(deps.store, owned, session, signal);
      return session;
    } catch (error) {
      if (signal.aborted || error instanceof FenceLost) throw error;
      deps.log.warn('a sandbox could not be synced', {
        workspace: owned.workspace.id,
        sandbox: session.sandbox,
        err: error,
      });
      await delay(500, undefined, { signal });
    }
  }
}
