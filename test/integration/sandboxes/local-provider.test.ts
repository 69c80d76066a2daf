import { expect } from 'vitest';
import { sandboxProviderConformance } from '../../conformance/sandbox-provider.ts';
import { useSandboxes } from './world.ts';

const world = useSandboxes();

sandboxProviderConformance('the Local provider', async () => {
  const workspace = await world.workspace();
  const owned = await world.own(workspace);
  return {
    run: async (command) => {
      const outcome = await world.run(owned, command);
      return {
        ...outcome.files,
        exitCode: outcome.exitCode,
        output: outcome.head + outcome.tail,
        toVersion: outcome.toVersion ?? -1,
      };
    },
    lose: async () => {
      const sandbox = world.provider.sandboxes.get(workspace.id);
      sandbox?.broker.kill('SIGKILL');
      sandbox?.guest.kill('SIGKILL');
      // Until it is noticed, a command could still be sent to it, and would be lost with it.
      await expect.poll(() => world.replica.meeting(workspace.id).session).toBeUndefined();
      await world.provider.replace(workspace);
    },
  };
});
