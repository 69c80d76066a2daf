/** Why a guest is gone, as the operator saw its container end. */
import { setTimeout as delay } from 'node:timers/promises';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { Session } from './session.ts';

/** How long a termination row is waited for (ARCHITECTURE 1). */
const TERMINATION_MS = 5_000;

/** The operator sees how the container ended and writes it down; that says more than "gone". */
export async function whyLost(
  store: WorkspaceStore,
  session: Session | undefined,
  said: string,
): Promise<[reason: string, message: string]> {
  if (session === undefined) return ['SandboxLost', `${said} while the command ran`];
  for (const deadline = performance.now() + TERMINATION_MS; performance.now() < deadline; await delay(250)) {
    const rows = await store.terminations(session.sandbox, session.podUid).catch(() => []);
    const last = rows.filter((row) => row.container === 'work').at(-1);
    if (last === undefined) continue;
    if (last.reason === 'OOMKilled')
      return [
        'OutOfMemory',
        `the work container ran out of memory; the limit is what the Workspace's environment.resources.memory says`,
      ];
    return [
      'SandboxLost',
      `the work container ended (${last.reason}${last.exit_code === null ? '' : `, exit code ${last.exit_code}`}) while the command ran`,
    ];
  }
  return ['SandboxLost', `${said} while the command ran`];
}
