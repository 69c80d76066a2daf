/** metav1.Conditions: set by type, their time moving only when their status does. Pure. */
export type Condition = Readonly<{
  type: string;
  status: 'True' | 'False' | 'Unknown';
  reason: string;
  message: string;
  lastTransitionTime: string;
  observedGeneration?: number;
}>;
export type NewCondition = Readonly<Omit<Condition, 'lastTransitionTime'>>;

/** The same array when nothing changes: an equal write would wake us for nothing. Types that are not named stay. */
export function setConditions(
  before: readonly Condition[],
  wanted: readonly NewCondition[],
  now: Date,
): readonly Condition[] {
  let changed = false;
  const after = new Map(before.map((condition) => [condition.type, condition]));
  for (const want of wanted) {
    const old = after.get(want.type);
    if (
      old !== undefined &&
      old.status === want.status &&
      old.reason === want.reason &&
      old.message === want.message &&
      old.observedGeneration === want.observedGeneration
    )
      continue;
    changed = true;
    // Kubernetes writes times by the second.
    const time = old?.status === want.status ? old.lastTransitionTime : `${now.toISOString().slice(0, 19)}Z`;
    after.set(want.type, { ...want, lastTransitionTime: time });
  }
  return changed ? [...after.values()] : before;
}
