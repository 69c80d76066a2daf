/** A prefix as a range, which an index of bytewise order can look up. Pure. */
const SURROGATES = { from: 0xd800, to: 0xe000 } as const;
const LAST = 0x10ffff;

/** The first text after all that begin with `prefix`; undefined: there is none. UTF-8 and code points have one order. */
export function endOfPrefix(prefix: string): string | undefined {
  const points = [...prefix].map((c) => c.codePointAt(0) ?? 0);
  while (points.at(-1) === LAST) points.pop();
  const last = points.pop();
  if (last === undefined) return undefined;
  const next = last + 1 === SURROGATES.from ? SURROGATES.to : last + 1;
  return String.fromCodePoint(...points, next);
}
