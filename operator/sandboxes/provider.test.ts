import { expect, test } from 'vitest';
import { assertIsolation } from './provider.ts';

test.for<[isolates: boolean, provider: string, refused: boolean]>([
  [true, 'Anthropic', false],
  [true, 'Scripted', false],
  [false, 'Scripted', false],
  [false, 'Anthropic', true],
  [false, 'AnythingNew', true],
])('SB10: isolates %s with a model of %s is refused: %s', ([isolates, provider, refused]) => {
  const check = () => assertIsolation({ name: isolates ? 'Pod' : 'Local', isolates }, { name: 'm', provider });
  if (refused) expect(check).toThrow(expect.objectContaining({ reason: 'ProviderNotIsolated' }));
  else expect(check).not.toThrow();
});
