/** What every SandboxProvider promises (AD2), seen from outside: commands in, outputs and versions out. */
import { expect, test } from 'vitest';

export type Ran = Readonly<{
  exitCode: number | undefined;
  output: string;
  created: number;
  changed: number;
  deleted: number;
  toVersion: number;
}>;
/** One workspace in the provider's hands. */
export type ProviderUnderTest = Readonly<{
  run(command: string): Promise<Ran>;
  /** Its sandbox vanishes, whatever that is here: nothing of it is left but what was committed. */
  lose(): Promise<void>;
}>;

export function sandboxProviderConformance(name: string, make: () => Promise<ProviderUnderTest>): void {
  test(`AD2: ${name} returns a command's output, its exit code and what it changed`, async () => {
    const sandbox = await make();
    expect(await sandbox.run('echo one > a; echo two > b; echo said; exit 4')).toMatchObject({
      exitCode: 4,
      output: 'said\n',
      created: 2,
      toVersion: 1,
    });
    expect(await sandbox.run('echo more >> a; rm b')).toMatchObject({
      exitCode: 0,
      created: 0,
      changed: 1,
      deleted: 1,
      toVersion: 2,
    });
  });

  test(`AD2: ${name} starts every command in the workspace, with no process of the one before`, async () => {
    const sandbox = await make();
    await sandbox.run('(sleep 300; true) & mkdir -p d && cd d && touch f');
    const { output } = await sandbox.run('ls -d d; ps -eo args 2>/dev/null | grep -c "[s]leep 300"');
    expect(output).toBe('d\n0\n');
  });

  test(`AD2: ${name} gives a lost sandbox's successor the committed files, and nothing else`, async () => {
    const sandbox = await make();
    await sandbox.run('mkdir -p src && echo kept > src/kept && chmod +x src/kept && ln -s src/kept link');
    await sandbox.lose();
    // What was sent before its end was noticed has an unknown outcome, and says so.
    await expect.poll(async () => (await sandbox.run('true')).exitCode, { timeout: 60_000 }).toBe(0);
    const { output, toVersion } = await sandbox.run(
      'cat link; test -x src/kept && echo executable; find . -type f | wc -l',
    );
    expect(output).toBe('kept\nexecutable\n1\n');
    expect(toVersion).toBe(1);
  });
}
