/** No more rights than ARCHITECTURE 1 gives each process. */
import { describe, expect, test } from 'vitest';
import { useWorld } from './world.ts';

const world = useWorld('rights');

/** Rights beyond what every authenticated account has, as `kubectl auth can-i --list` shows them. */
async function rights(account: string, namespace: string): Promise<readonly string[]> {
  const text = await world.kubectl.run([
    'auth',
    'can-i',
    '--list',
    '--as',
    `system:serviceaccount:${account}`,
    '-n',
    namespace,
  ]);
  return text
    .split('\n')
    .slice(1)
    .map((line) => line.trim())
    .filter((line) => line !== '' && !line.startsWith('[') && !/^(selfsubject|selfsubjectrules)/.test(line))
    .map((line) => line.replaceAll(/\s+/g, ' '));
}

describe('service accounts', () => {
  test('a sandbox has no rights at all', async () => {
    await world.apply(
      world.workspace('has-sandbox'),
      world.turn('has-sandbox', { workspace: 'has-sandbox', command: 'true' }),
    );
    await world.finished('has-sandbox');
    expect(await rights(`${world.namespace}:lathe-sandbox`, world.namespace)).toEqual([]);
  });

  test('the turn controller may review tokens and read the Secrets it was given by name, and writes nothing', async () => {
    const { namespace } = world.installation;
    const inTeam = await rights(`${namespace}:lathe-turns`, world.namespace);
    expect(inTeam).toEqual(['tokenreviews.authentication.k8s.io [] [] [create]']);
    const athome = await rights(`${namespace}:lathe-turns`, namespace);
    for (const line of athome)
      expect(line).toMatch(
        /^(tokenreviews\.authentication\.k8s\.io \[\] \[\] \[create\]|secrets \[\] \[[a-z0-9 -]+\] \[get\])$/,
      );
  });

  test('the operator reads no Secret outside its own namespace and cannot exec, attach or read logs', async () => {
    const { namespace } = world.installation;
    const lines = await rights(`${namespace}:lathe-operator`, world.namespace);
    for (const line of lines)
      expect(line).not.toMatch(/^(secrets|pods\/exec|pods\/attach|pods\/log|pods\/portforward|\*)/);
    expect(lines.some((line) => line.startsWith('pods '))).toBe(true);
  });
});
