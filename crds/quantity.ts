/** Kubernetes quantities and Go durations, as far as our fields use them. */

const UNITS: Readonly<Record<string, number>> = {
  ...{ n: 1e-9, u: 1e-6, m: 1e-3, '': 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 },
  ...{ Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60 },
};

export const QUANTITY_PATTERN = '^[0-9]+(\\.[0-9]+)?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$';
export const DURATION_PATTERN = '^([0-9]+(ms|s|m|h))+$';

/** In base units (bytes, cores). Undefined when it is no quantity. */
export function parseQuantity(text: string): number | undefined {
  const match = /^([0-9]+(?:\.[0-9]+)?)([a-zA-Z]*)$/.exec(text);
  const unit = UNITS[match?.[2] ?? '?'];
  return match?.[1] === undefined || unit === undefined ? undefined : Number(match[1]) * unit;
}

/** In milliseconds. Undefined when it is no duration. */
export function parseDuration(text: string): number | undefined {
  if (!new RegExp(DURATION_PATTERN).test(text)) return undefined;
  const ms = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000 } as const;
  let sum = 0;
  for (const [, n, unit] of text.matchAll(/([0-9]+)(ms|s|m|h)/g)) sum += Number(n) * ms[unit as keyof typeof ms];
  return sum;
}
