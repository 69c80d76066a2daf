/** Writes a status when it says something new, to the object that was looked at or to none. */
import { isDeepStrictEqual } from 'node:util';
import type { KubeClient } from '../kube/client.ts';
import { isConflict, isNotFound } from '../kube/errors.ts';
import { refOf, type KubeObject, type Resource } from '../kube/types.ts';

/** @returns whether it was written. Gone or replaced meanwhile: nothing, and that change wakes us */
export async function writeStatus<T extends KubeObject>(
  client: KubeClient,
  resource: Resource<T>,
  object: T,
  status: object,
  signal: AbortSignal,
): Promise<boolean> {
  if (isDeepStrictEqual(withoutUndefined(status), object.status ?? {})) return false;
  const before = (object.status ?? {}) as Record<string, unknown>;
  // A merge patch leaves what it does not name: what is gone has to be named as null.
  const gone = Object.fromEntries(
    Object.keys(before)
      .filter((key) => !(key in status))
      .map((key) => [key, null]),
  );
  try {
    await client.patchStatus(
      resource,
      refOf(object),
      { metadata: { uid: object.metadata.uid }, status: { ...gone, ...status } },
      signal,
    );
    return true;
  } catch (error) {
    if (isNotFound(error) || isConflict(error)) return false;
    throw error;
  }
}

function withoutUndefined(value: object): unknown {
  return JSON.parse(JSON.stringify(value));
}
