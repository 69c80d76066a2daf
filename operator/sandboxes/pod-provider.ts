/** Sandboxes as pods: asked for by a row, made by the operator. */
import type { WorkspaceStore } from '../store/workspace-store.ts';
import type { SandboxProvider } from './provider.ts';

export function podProvider(store: WorkspaceStore): SandboxProvider {
  return {
    name: 'Pod',
    isolates: true,
    ensure: async (workspace, signal) => void (await store.demandSandbox(workspace.id, signal)),
    close: async () => undefined,
  };
}
