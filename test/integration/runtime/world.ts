/** What most tests here start from: an owner, attached, and a tree at version 1. */
import type { Entry } from '../../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { fakeTurns, type FakeTurns } from './fake-turns.ts';
import { ownerOf, type Owner } from './owner.ts';
import { startRuntime, type Runtime } from './runtime.ts';

export type World = AsyncDisposable & Readonly<{ turns: FakeTurns; runtime: Runtime; owner: Owner }>;

export async function world(options: { entries?: Entry[]; asUser?: boolean } = {}): Promise<World> {
  const stack = new AsyncDisposableStack();
  try {
    const turns = stack.use(await fakeTurns());
    const runtime = stack.use(startRuntime({ turns, asUser: options.asUser ?? false }));
    const owner = await ownerOf(turns, options.entries);
    return { turns, runtime, owner, [Symbol.asyncDispose]: () => stack.disposeAsync() };
  } catch (error) {
    await stack.disposeAsync();
    throw error;
  }
}
