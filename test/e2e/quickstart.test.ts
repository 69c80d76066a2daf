/** The example that the README starts with, and the API that follows it live. */
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { confinementFaults, readConfinement } from '../../examples/demo/confinement.ts';
import { followTurn } from '../../examples/demo/transcript.ts';
import type { DiffResponse, ExecResponse } from '../../proto/gen/lathe/turns/v1/turns.ts';
import { kubectlOf } from '../installation/kubectl.ts';
import { connectTurns, type TurnsClient } from '../installation/turns-client.ts';

const installation = inject('installation');
const kubectl = kubectlOf(installation.cluster);
const NAMESPACE = 'quickstart';
const where = { namespace: NAMESPACE, workspace: 'invoice' };
let turns: TurnsClient;

beforeAll(async () => {
  await kubectl.run(['delete', 'namespace', NAMESPACE, '--ignore-not-found', '--wait']);
  await kubectl.run(['apply', '-k', 'examples/quickstart']);
  await kubectl.run(['-n', NAMESPACE, 'wait', '--for=condition=Ready', 'workspace/invoice', '--timeout=60s']);
  turns = await connectTurns(
    installation.cluster,
    { namespace: installation.namespace, direct: false },
    AbortSignal.timeout(30_000),
  );
});
afterAll(async () => {
  await turns?.[Symbol.asyncDispose]();
  await kubectl.run(['delete', 'namespace', NAMESPACE, '--ignore-not-found', '--wait=false']);
  await kubectl.run(['delete', 'workspaceclass', 'quickstart', '--ignore-not-found', '--wait=false']);
});

async function follow(turn: string): Promise<{ ending: Awaited<ReturnType<typeof followTurn>>; shown: string }> {
  await kubectl.run(['apply', '-f', `examples/quickstart/turns/${turn}.yaml`]);
  let shown = '';
  const ending = await followTurn(
    turns.client,
    { ...where, turn },
    (text) => (shown += text),
    { colour: false },
    AbortSignal.timeout(90_000),
  );
  return { ending, shown };
}

test('FW25: the seed is version 1, with the paths that were asked for', async () => {
  const workspace = await kubectl.json<{ status: object }>(['-n', NAMESPACE, 'get', 'workspace', 'invoice']);
  expect(workspace.status).toMatchObject({ head: 1, files: 4 });
});

test('the failing test is shown, the model mends it, and the patch is what it did', async () => {
  const failing = await follow('show-failure');
  expect(failing.ending).toMatchObject({ phase: 'Failed', reason: 'CommandFailed', exitCode: 1 });
  const mended = await follow('fix-tests');
  expect(mended.ending).toMatchObject({
    phase: 'Completed',
    reason: 'Answered',
    files: { created: 0, changed: 2, deleted: 0 },
  });
  // In the order it happened: what the model says, what it runs, what that prints, how it ends.
  const order = [
    'I will read the code',
    '$ cat src/invoice.js',
    'export function total',
    '└ exit 0',
    '$ sed -i',
    'All four tests pass',
    'Completed (Answered)',
  ];
  const at = order.map((text) => mended.shown.indexOf(text));
  expect(at.every((position) => position >= 0)).toBe(true);
  expect(at).toEqual(at.toSorted((a, b) => a - b));

  const changed: DiffResponse[] = [];
  for await (const file of turns.client.diff({
    workspace: { namespace: NAMESPACE, name: 'invoice' },
    from: 1n,
    to: 0n,
  }) as AsyncIterable<DiffResponse>)
    changed.push(file);
  expect(changed.map((file) => [file.path, file.change])).toEqual([['/src/invoice.js', 'changed']]);
  expect(changed[0]?.after?.toString()).toContain('let i = 0');
}, 180_000);

test('the confinement that it shows is the one that is promised', async () => {
  const { ending } = await follow('confinement');
  expect(confinementFaults(readConfinement(ending.output))).toEqual([]);
});

test('a log that is followed from a cursor has exactly the events after it', async () => {
  const read = async (after: bigint) => {
    const seqs: bigint[] = [];
    const call = turns.client.follow({
      workspace: { namespace: NAMESPACE, name: 'invoice' },
      after,
      session: '',
      turn: '',
      follow: false,
    });
    for await (const { message } of call as AsyncIterable<{ message?: { $case: string; value: { seq?: bigint } } }>) {
      if (message?.$case === 'event' && message.value.seq !== undefined) seqs.push(message.value.seq);
    }
    return seqs;
  };
  const all = await read(0n);
  expect(all).toEqual(all.map((_, i) => BigInt(i + 1)));
  expect(await read(5n)).toEqual(all.slice(5));
});

test('SB19: a command without a turn is an execution like any other, and the same key runs it once', async () => {
  const run = async () => {
    const call = turns.client.exec({
      workspace: { namespace: NAMESPACE, name: 'invoice' },
      command: 'echo once >> ran; cat ran',
      timeoutMs: 10_000,
      actor: 'test',
      idempotencyKey: 'the-same',
      stdin: Buffer.alloc(0),
    });
    for await (const { message } of call as AsyncIterable<ExecResponse>)
      if (message?.$case === 'result') return message.value;
    throw new Error('no result');
  };
  const first = await run();
  expect(first).toMatchObject({ state: 'done', exitCode: 0, created: 1, paths: ['/ran'] });
  expect(await run()).toMatchObject({ execution: first.execution, toVersion: first.toVersion });
});
