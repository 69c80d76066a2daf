/** What the sandbox said of itself (examples/quickstart/turns/confinement.yaml), read and judged. */
export type Confinement = Readonly<Record<string, string>>;

/** Each `key=value` line; anything else is left out. */
export function readConfinement(output: string): Confinement {
  const pairs = output
    .split('\n')
    .map((line) => /^([a-zA-Z]+)=(.*)$/.exec(line))
    .flatMap((match) => (match?.[1] === undefined ? [] : [[match[1], (match[2] ?? '').trim()] as const]));
  return Object.fromEntries(pairs);
}

/** Why this is not the confinement that Lathe promises; empty when it is. */
export function confinementFaults(seen: Confinement): readonly string[] {
  const must: readonly [key: string, holds: (value: string) => boolean, promise: string][] = [
    ['uid', (v) => Number(v) > 0, 'commands run as a user that is not root'],
    ['capabilities', (v) => /^0+$/.test(v), 'every capability is dropped'],
    ['noNewPrivs', (v) => v === '1', 'no process can gain privileges'],
    ['seccomp', (v) => v === '2', 'a seccomp filter is in force'],
    ['memoryLimit', (v) => /^\d+$/.test(v) && Number(v) < 2 ** 50, 'memory is limited'],
    ['cpuQuota', (v) => /^\d+/.test(v), 'CPU is limited'],
    ['rootReadOnly', (v) => v === 'true', 'the root file system is read-only'],
    ['credentials', (v) => v === 'none', 'no credential is mounted'],
  ];
  return must
    .filter(([key, holds]) => !holds(seen[key] ?? ''))
    .map(([key, , promise]) => `${promise}, but ${key} is ${seen[key] ?? 'unknown'}`);
}
