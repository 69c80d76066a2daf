/** So many per second and source, with some to begin with; bounded, however many sources there are. */
export type Rate = (source: string) => boolean;

const SOURCES = 4_096;

/** @returns whether this one is within the rate; it then counts */
export function createRate(
  { perSecond, burst }: Readonly<{ perSecond: number; burst: number }>,
  now: () => number = () => performance.now(),
): Rate {
  const left = new Map<string, { tokens: number; at: number }>();
  return (source) => {
    const seen = left.get(source);
    const tokens = seen === undefined ? burst : Math.min(burst, seen.tokens + ((now() - seen.at) / 1_000) * perSecond);
    left.delete(source);
    for (const oldest of left.keys()) {
      if (left.size < SOURCES) break;
      left.delete(oldest);
    }
    left.set(source, { tokens: Math.max(0, tokens - 1), at: now() });
    return tokens >= 1;
  };
}
