/** A seed from another workspace of the namespace: its rows at a version. The tenant has the contents already. */
import type { SeedSpec } from '../../../crds/types.ts';
import { PermanentError, TransientError } from '../../errors.ts';
import type { Origin, SourceContext } from './source.ts';

type WorkspaceSource = NonNullable<SeedSpec['workspace']>;

export async function seedFromWorkspace(
  { name, version }: WorkspaceSource,
  { deps: { store }, workspace, tree, progress, signal }: SourceContext,
): Promise<Origin> {
  if (name === workspace.name) throw new PermanentError('Conflict', `workspace ${name} can't be its own seed`);
  const from = await store.findWorkspace(workspace.namespace, name, signal);
  // A namespace that was made anew has a new tenant, and the old one's rows are none of its business.
  if (from === undefined || from.tenant !== workspace.tenant)
    throw new TransientError('NotFound', `there is no Workspace ${name} in namespace ${workspace.namespace}`);
  if (from.seed_state === 'Failed')
    throw new PermanentError('SeedFailed', `Workspace ${name} has no files: its own seed failed`);
  if (from.seed_state !== 'None' && from.seed_state !== 'Done')
    throw new TransientError('NotFound', `Workspace ${name} waits for its own seed`);
  const { head } = await store.head(from.id, signal);
  const at = version === undefined ? head : BigInt(version);
  if (at > head) throw new PermanentError('NotFound', `Workspace ${name} has no version ${at}; its newest is ${head}`);
  progress.phase = 'copying';
  for await (const page of store.tree(from.id, at, signal)) {
    for (const { path, kind, executable, size, sha256, target } of page)
      tree.copy({
        path,
        kind,
        executable,
        size: Number(size),
        ...(sha256 === null ? {} : { sha256 }),
        ...(target === null ? {} : { target }),
      });
  }
  return { workspace: { name, id: from.id, version: Number(at) } };
}
