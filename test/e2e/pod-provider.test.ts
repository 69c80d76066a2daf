import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll } from 'vitest';
import type { ExecResponse } from '../../proto/gen/lathe/turns/v1/turns.ts';
import { sandboxProviderConformance } from '../conformance/sandbox-provider.ts';
import { connectTurns, type TurnsClient } from '../installation/turns-client.ts';
import { useWorld } from './world.ts';

const world = useWorld('provider');
let turns: TurnsClient;
beforeAll(async () => {
  turns = await connectTurns(
    world.installation.cluster,
    { namespace: world.installation.namespace, direct: false },
    AbortSignal.timeout(30_000),
  );
});
afterAll(async () => await turns?.[Symbol.asyncDispose]());

sandboxProviderConformance('the Pod provider', async () => {
  const name = `w-${randomBytes(3).toString('hex')}`;
  await world.apply(world.workspace(name));
  await world.condition('workspace', name, 'Ready', { status: 'True' });
  return {
    run: async (command) => {
      const chunks: Buffer[] = [];
      const call = turns.client.exec({
        workspace: { namespace: world.namespace, name },
        command,
        timeoutMs: 60_000,
        actor: 'test',
        idempotencyKey: '',
        stdin: Buffer.alloc(0),
      });
      for await (const { message } of call as AsyncIterable<ExecResponse>) {
        if (message?.$case === 'output') chunks.push(Buffer.from(message.value.data));
        if (message?.$case === 'result') {
          const { exitCode, created, changed, deleted, toVersion } = message.value;
          return {
            exitCode,
            created,
            changed,
            deleted,
            toVersion: Number(toVersion),
            output: Buffer.concat(chunks).toString('utf8'),
          };
        }
      }
      throw new Error('the stream ended without a result');
    },
    lose: async () => {
      await world.kubectl.run([
        '-n',
        world.namespace,
        'delete',
        'pods',
        '-l',
        `lathe.dev/workspace=${name}`,
        '--grace-period=0',
        '--force',
      ]);
    },
  };
});
