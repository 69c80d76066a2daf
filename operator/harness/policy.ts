/** What may be run, decided in code. Rules in order, the first that speaks decides; deny rules come first. */

export type Asked = Readonly<{ command: string }>;
export type Verdict = Readonly<{ do: 'allow' } | { do: 'deny'; reason: string }>;
type Rule = (asked: Asked) => Verdict | undefined;

/** Nothing denies yet; hooks, modes and rules of classes and workspaces take their places here. */
const RULES: readonly Rule[] = [];

export function decide(asked: Asked): Verdict {
  for (const rule of RULES) {
    const verdict = rule(asked);
    if (verdict !== undefined) return verdict;
  }
  return { do: 'allow' };
}
