/** WorkspaceClasses: into rows, scripts with them, for the turn controllers to read. */
import type { ClassSpec, ModelEntry } from '../../crds/types.ts';
import { setConditions, type Condition } from '../kube/conditions.ts';
import { isNotFound } from '../kube/errors.ts';
import type { Result } from '../kube/queue.ts';
import type { Ref } from '../kube/types.ts';
import type { Deps } from './deps.ts';
import { isDefault, isProblem, type Problem } from './effective.ts';
import { CLASSES, CONFIG_MAPS } from './resources.ts';
import { writeStatus } from './status.ts';

const RETRY_MS = 10_000;

export async function reconcileClass(deps: Deps, ref: Ref, signal: AbortSignal): Promise<Result> {
  const found = deps.classes.get(ref);
  if (found === undefined) return;
  const spec = await withScripts(deps, found.spec, signal);
  if (!isProblem(spec)) {
    await deps.store.upsertClass({
      name: ref.name,
      uid: found.metadata.uid,
      generation: found.metadata.generation ?? 0,
      spec,
    });
  }
  const others = isDefault(found)
    ? deps.classes.list().filter((c) => isDefault(c) && c.metadata.name !== ref.name)
    : [];
  const problem = isProblem(spec)
    ? spec
    : others.length > 0
      ? {
          reason: 'SeveralDefaults',
          message: `${others.map((c) => c.metadata.name).join(', ')} say they are the default too; take the annotation from all but one`,
        }
      : undefined;
  const generation = found.metadata.generation ?? 0;
  const of = (type: string, holds: boolean) =>
    ({
      type,
      status: holds ? 'True' : 'False',
      reason: problem?.reason ?? 'Ready',
      message: problem?.message ?? '',
      observedGeneration: generation,
    }) as const;
  const conditions = setConditions(
    (found.status?.conditions ?? []) as readonly Condition[],
    [of('Ready', problem === undefined), of('Stalled', problem !== undefined)],
    deps.now(),
  );
  await writeStatus(deps.client, CLASSES, found, { observedGeneration: generation, conditions }, signal);
  return isProblem(spec) ? { afterMs: RETRY_MS } : undefined;
}

async function withScripts(deps: Deps, spec: ClassSpec, signal: AbortSignal): Promise<ClassSpec | Problem> {
  const models: ModelEntry[] = [];
  for (const model of spec.models ?? []) {
    const { scriptConfigMap, ...rest } = model;
    if (scriptConfigMap === undefined) {
      models.push(model);
      continue;
    }
    const where = { namespace: deps.settings.namespace, name: scriptConfigMap.name };
    const map = await deps.client.get(CONFIG_MAPS, where, signal).catch((error: unknown) => {
      if (isNotFound(error)) return undefined;
      throw error;
    });
    const script = map?.data?.[scriptConfigMap.key];
    if (script === undefined) {
      return {
        reason: 'NotFound',
        message: `model ${model.name}: ConfigMap ${where.namespace}/${where.name} has no key ${scriptConfigMap.key}; it is looked for again every ${RETRY_MS / 1_000} s`,
      };
    }
    models.push({ ...rest, script });
  }
  return { ...spec, ...(spec.models === undefined ? {} : { models }) };
}
