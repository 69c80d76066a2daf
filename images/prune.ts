/** What of the cache goes: archives of former builds are large, and are made again from their layers in a moment. */
import { readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';

export type Kept = Readonly<{ name: string; usedAtMs: number }>;
export type PruneRules = Readonly<{
  nowMs: number;
  /** Somebody may be reading what is younger. */
  graceMs: number;
  /** Older ones go, whatever their number. */
  maxAgeMs: number;
  /** The newest of each image, or kind of layer, stay until `maxAgeMs`. */
  keep: number;
}>;

export const RULES = { graceMs: 10 * 60_000, maxAgeMs: 14 * 86_400_000, keep: 3 } as const;

/** Pure: the names that go. A name is `<image>-<hash>`, with or without an ending. */
export function plan(files: readonly Kept[], current: ReadonlySet<string>, rules: PruneRules): readonly string[] {
  const groups = Map.groupBy(files, ({ name }) => name.slice(0, name.lastIndexOf('-')));
  return [...groups.values()].flatMap((group) =>
    group
      .toSorted((a, b) => b.usedAtMs - a.usedAtMs)
      .filter(({ name, usedAtMs }, place) => {
        const ageMs = rules.nowMs - usedAtMs;
        return !current.has(name) && ageMs > rules.graceMs && (place >= rules.keep || ageMs > rules.maxAgeMs);
      })
      .map(({ name }) => name),
  );
}

export async function prune(folder: string, current: ReadonlySet<string>): Promise<void> {
  const files: Kept[] = [];
  for (const name of await readdir(folder).catch(() => [])) {
    // Gone since: another build prunes, too.
    const found = await stat(join(folder, name)).catch(() => undefined);
    if (found !== undefined) files.push({ name, usedAtMs: found.mtimeMs });
  }
  for (const name of plan(files, current, { ...RULES, nowMs: Date.now() }))
    await rm(join(folder, name), { recursive: true, force: true });
}
