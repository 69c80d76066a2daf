/** What makes sandboxes exist (AD2), and the rule about those that do not isolate. */
import { PermanentError } from '../errors.ts';
import type { WorkspaceRow } from '../store/rows.ts';

export type SandboxProvider = Readonly<{
  name: 'Pod' | 'Local';
  /** Whether what runs in it is kept from everything else. */
  isolates: boolean;
  /** Asks for the workspace's sandbox; idempotent. It then attaches by itself. */
  ensure(workspace: WorkspaceRow, signal: AbortSignal): Promise<void>;
  close(): Promise<void>;
}>;

/** SB10: only replies that were written beforehand may drive something that is not isolated. @throws PermanentError ProviderNotIsolated */
export function assertIsolation(
  provider: Pick<SandboxProvider, 'name' | 'isolates'>,
  model: Readonly<{ name: string; provider: string }>,
): void {
  if (provider.isolates || model.provider === 'Scripted') return;
  throw new PermanentError(
    'ProviderNotIsolated',
    `model ${model.name} (${model.provider}) is refused: sandboxes of provider ${provider.name} isolate nothing; use a Scripted model, or the Pod provider`,
  );
}
