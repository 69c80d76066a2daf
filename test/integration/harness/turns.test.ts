/** Whole turns: real Postgres, real sandbox processes, a scripted model; and the harness that dies at every event. */
import { describe, expect, test } from 'vitest';
import { createHub } from '../../../operator/harness/hub.ts';
import { runTurn, type TurnDeps } from '../../../operator/harness/turn.ts';
import { createTurnLoop } from '../../../operator/harness/turn-loop.ts';
import { parseScript, scriptedModel } from '../../../operator/models/scripted.ts';
import { createOutbound } from '../../../operator/outbound.ts';
import { resolveModel } from '../../../operator/models/registry.ts';
import type { LogEvent, WorkspaceRow } from '../../../operator/store/rows.ts';
import type { WorkspaceStore } from '../../../operator/store/workspace-store.ts';
import { createLogger } from '../../../operator/telemetry/log.ts';
import { startMessagesApi } from '../../fakes/messages-api.ts';
import { useSandboxes } from '../sandboxes/world.ts';

const world = useSandboxes();
const SCRIPT = parseScript(
  'test',
  JSON.stringify([
    { text: 'I look.', tools: [{ command: 'ls; echo once >> runs.txt' }, { name: 'Edit', input: {} }] },
    { tools: [{ command: 'echo 42 > answer.txt' }] },
    { text: 'It is 42.' },
  ]),
);
const model = scriptedModel('test', SCRIPT);

function deps(store: WorkspaceStore = world.store): TurnDeps {
  return { store, executor: world.replica.executor, hub: createHub(), model: () => model, random: () => 0 };
}

async function claimed(workspace: WorkspaceRow, spec: object) {
  const id = await world.turn(workspace, spec);
  const owned = await world.own(workspace);
  const turn = await world.store.getTurn(id);
  if (turn === undefined) throw new Error('no turn');
  return { owned, turn };
}

/** What does not depend on when and under which ids it ran. */
function essence(events: readonly LogEvent[]): unknown[] {
  return events
    .filter((e) => e.type !== 'model.requested')
    .map((e) => {
      const p = e.payload as Record<string, unknown>;
      return [e.type, p['blocks'] ?? p['command'] ?? p['head'] ?? p['content'] ?? p['phase'] ?? p['message']];
    });
}

describe('a turn', () => {
  test('TL1, TL4: a scripted model looks, writes and answers; every call has one result', async () => {
    const workspace = await world.workspace();
    const { owned, turn } = await claimed(workspace, { message: 'What is it?' });
    await runTurn(deps(), owned, turn, new AbortController().signal);
    expect(await world.store.getTurn(turn.id)).toMatchObject({
      phase: 'Completed',
      reason: 'Answered',
      answer: 'It is 42.',
      steps: 3,
      files: { created: 2 },
    });
    const events = await world.store.readEvents(workspace.id, {});
    expect(events.filter((e) => e.type !== 'model.requested').map((e) => e.type)).toEqual([
      ...['turn.started', 'model.replied', 'execution.dispatched', 'execution.done', 'tool.result'],
      ...['model.replied', 'execution.dispatched', 'execution.done', 'model.replied', 'turn.ended'],
    ]);
  });

  test('a later turn of the session continues its conversation', async () => {
    await using api = await startMessagesApi([
      { kind: 'reply', text: 'First.' },
      { kind: 'reply', text: 'Second.' },
    ]);
    const workspace = await world.workspace();
    const entry = {
      name: 'real',
      provider: 'Anthropic',
      model: 'm',
      baseURL: api.baseURL,
      apiKeySecret: { name: 's', key: 'k' },
    } as const;
    const isolating = { ...world.provider, isolates: true };
    const real = { ...deps(), model: () => resolveModel('c', { models: [entry] }, isolating, async () => 'secret') };
    for (const message of ['one', 'two']) {
      const { owned, turn } = await claimed(workspace, { message });
      await runTurn(real, owned, turn, new AbortController().signal);
    }
    const asked = api.asked[1]?.body['messages'] as { role: string; content: { text: string }[] }[];
    expect(asked.map((m) => [m.role, m.content[0]?.text])).toEqual([
      ['user', 'one'],
      ['assistant', 'First.'],
      ['user', 'two'],
    ]);
  });

  test('SB10: a real model with sandboxes that isolate nothing fails the turn with ProviderNotIsolated', async () => {
    const entry = { name: 'real', provider: 'Anthropic', model: 'm', apiKeySecret: { name: 's', key: 'k' } } as const;
    const { owned, turn } = await claimed(await world.workspace(), { message: 'hello' });
    await runTurn(
      { ...deps(), model: () => resolveModel('c', { models: [entry] }, world.provider, async () => 'secret') },
      owned,
      turn,
      new AbortController().signal,
    );
    expect(await world.store.getTurn(turn.id)).toMatchObject({ phase: 'Failed', reason: 'ProviderNotIsolated' });
  });

  test('M1: a wrong key fails the turn with its reason, and an overload is tried again and is in the log', async () => {
    await using api = await startMessagesApi([
      { kind: 'status', status: 529 },
      { kind: 'status', status: 429, retryAfter: 0 },
      { kind: 'status', status: 401 },
    ]);
    const entry = {
      name: 'real',
      provider: 'Anthropic',
      model: 'm',
      baseURL: api.baseURL,
      apiKeySecret: { name: 's', key: 'k' },
    } as const;
    const workspace = await world.workspace();
    const { owned, turn } = await claimed(workspace, { message: 'hello' });
    const real = {
      ...deps(),
      model: () => resolveModel('c', { models: [entry] }, { ...world.provider, isolates: true }, async () => 'secret'),
    };
    await runTurn(real, owned, turn, new AbortController().signal);
    expect(await world.store.getTurn(turn.id)).toMatchObject({ phase: 'Failed', reason: 'ModelAuthFailed' });
    const failures = (await world.store.readEvents(workspace.id, {})).filter((e) => e.type === 'model.failed');
    expect(failures.map((e) => (e.payload as { reason: string }).reason)).toEqual([
      'ModelOverloaded',
      'ModelRateLimited',
      'ModelAuthFailed',
    ]);
  });

  test('M4: cancelled in the middle of a command: it ends Cancelled, and what was done is kept', async () => {
    const workspace = await world.workspace();
    const { owned, turn } = await claimed(workspace, { command: 'echo kept > kept; sleep 100' });
    const cancel = new AbortController();
    const running = runTurn(deps(), owned, turn, cancel.signal);
    await expect.poll(async () => (await world.store.openExecutions(workspace.id)).length, { timeout: 10_000 }).toBe(1);
    cancel.abort(new Error('cancelled'));
    await running;
    expect(await world.store.getTurn(turn.id)).toMatchObject({ phase: 'Cancelled' });
  });
});

test('TL21, A3: the harness dies at every event, before and after it is stored: the same transcript, no command twice', async () => {
  const reference = await world.workspace();
  const first = await claimed(reference, { message: 'What is it?' });
  await runTurn(deps(), first.owned, first.turn, new AbortController().signal);
  const expected = essence(await world.store.readEvents(reference.id, {}));
  let boundaries = 0;
  for (const when of ['before', 'after'] as const) {
    for (let k = 0; ; k += 1) {
      const workspace = await world.workspace();
      const { owned, turn } = await claimed(workspace, { message: 'What is it?' });
      let commits = 0;
      const dying: WorkspaceStore = {
        ...world.store,
        commit: async (lease, commit, signal) => {
          commits += 1;
          if (commits - 1 === k && when === 'before') throw new Error('died');
          const result = await world.store.commit(lease, commit, signal);
          if (commits - 1 === k) throw new Error('died');
          return result;
        },
      };
      const died = await runTurn(deps(dying), owned, turn, new AbortController().signal).then(
        () => false,
        (error: Error) => {
          if (error.message !== 'died') throw error;
          return true;
        },
      );
      if (!died) break;
      boundaries += 1;
      await runTurn(deps(), owned, turn, new AbortController().signal);
      expect(essence(await world.store.readEvents(workspace.id, {})), `died ${when} commit ${k}`).toEqual(expected);
      expect((await world.run(owned, 'cat runs.txt')).head).toBe('once\n');
    }
  }
  expect(boundaries).toBeGreaterThanOrEqual(16);
}, 240_000);

test('the loop claims seeds before turns, and turns of one workspace in order', async () => {
  const workspace = await world.workspace({ seed: true });
  await world.turn(workspace, { command: 'cat seeded.txt >> log.txt' });
  const last = await world.turn(workspace, { command: 'cat log.txt' });
  const stop = new AbortController();
  const loop = createTurnLoop({
    seed: {
      store: world.store,
      outbound: createOutbound([]),
      readSecret: () => Promise.reject(new Error('no Secret is needed')),
      folder: world.folder,
    },
    store: world.store,
    ownership: world.replica.ownership,
    turn: deps(),
    log: createLogger('error'),
    concurrency: 4,
  });
  const running = loop.run(stop.signal);
  await world.control.putSeed(workspace.id, [
    { path: '/seeded.txt', executable: false, content: Buffer.from('seed\n') },
  ]);
  loop.wake();
  await expect.poll(async () => (await world.store.getTurn(last))?.phase, { timeout: 30_000 }).toBe('Completed');
  expect((await world.store.getTurn(last))?.output).toBe('seed\n');
  expect((await world.store.head(workspace.id)).head).toBe(2n);
  stop.abort();
  await running;
});
