/** The life of a sandbox between turns: it goes when nobody needs it, and files stay. */
import { expect, test } from 'vitest';
import { useWorld } from './world.ts';

const world = useWorld('suspend');
const pods = (workspace: string) => world.list('pods', `lathe.dev/workspace=${workspace}`);

test('SB13, SB20: an idle sandbox is suspended, and the next command finds its files in a new one', async () => {
  await world.apply(
    world.workspace('idle', { volume: { mode: 'Persistent' }, sandbox: { idleTimeout: '2s' } }),
    world.turn('before', {
      workspace: 'idle',
      command: 'echo kept > kept; mkdir -p node_modules; echo cached > node_modules/cache',
    }),
  );
  await world.finished('before');
  await world.condition('sandbox', 'idle', 'Suspended', { status: 'True', reason: 'Idle' });
  await expect.poll(() => pods('idle'), { timeout: 30_000 }).toEqual([]);
  // What is ignored lives on the volume: that is what makes the second install free.
  await world.apply(world.turn('after', { workspace: 'idle', command: 'cat kept node_modules/cache' }));
  expect((await world.finished('after')).status?.['output']).toBe('kept\ncached\n');
});

test('SB18: a person suspends a sandbox by its name; a command waits, and runs once it may', async () => {
  await world.apply(world.workspace('asked'), world.turn('first', { workspace: 'asked', command: 'echo 1 > n' }));
  await world.finished('first');
  const mode = (operatingMode: string) =>
    world.kubectl.run([
      '-n',
      world.namespace,
      'patch',
      'sandbox',
      'asked',
      '--type=merge',
      '-p',
      JSON.stringify({ spec: { operatingMode } }),
    ]);
  await mode('Suspended');
  await world.condition('sandbox', 'asked', 'Suspended', { status: 'True', reason: 'Requested' });
  await expect.poll(() => pods('asked'), { timeout: 30_000 }).toEqual([]);
  await world.apply(world.turn('second', { workspace: 'asked', command: 'cat n' }));
  await expect.poll(async () => (await world.get('turn', 'second')).status?.phase, { timeout: 15_000 }).toBe('Running');
  expect(await pods('asked')).toEqual([]);
  await mode('Running');
  expect((await world.finished('second')).status?.['output']).toBe('1\n');
});
