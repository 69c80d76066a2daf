/** What the API server answers instead of an object, by its own status and reason. */
import { PermanentError, TransientError } from '../errors.ts';

/** metav1.Status, as far as we read it. `reason`: NotFound, AlreadyExists, Conflict, Invalid, Forbidden, Expired, TooManyRequests, … */
export class KubeError extends Error {
  readonly status: number;
  readonly reason: string;
  readonly retryAfterMs: number | undefined;
  constructor(status: number, reason: string, message: string, retryAfterMs?: number) {
    super(message);
    this.name = 'KubeError';
    this.status = status;
    this.reason = reason;
    this.retryAfterMs = retryAfterMs;
  }
}

export const isNotFound = (e: unknown): e is KubeError => e instanceof KubeError && e.status === 404;
export const isAlreadyExists = (e: unknown): e is KubeError =>
  e instanceof KubeError && e.status === 409 && e.reason === 'AlreadyExists';
export const isConflict = (e: unknown): e is KubeError =>
  e instanceof KubeError && e.status === 409 && e.reason !== 'AlreadyExists';
export const isForbidden = (e: unknown): e is KubeError => e instanceof KubeError && e.status === 403;
export const isInvalid = (e: unknown): e is KubeError =>
  e instanceof KubeError && (e.status === 422 || e.status === 400);
/** The resource version is too old: list again. */
export const isExpired = (e: unknown): e is KubeError => e instanceof KubeError && e.status === 410;

/** For a queue: what time may heal, and what only somebody's change can. */
export function classify(error: unknown): TransientError | PermanentError {
  if (error instanceof TransientError || error instanceof PermanentError) return error;
  if (error instanceof KubeError) {
    const healing = error.status === 409 || error.status === 410 || error.status === 429 || error.status >= 500;
    if (healing)
      return new TransientError(error.reason, error.message, {
        cause: error,
        ...(error.retryAfterMs === undefined ? {} : { retryAfterMs: error.retryAfterMs }),
      });
    // 403 (a quota, a webhook, missing rights) and 404 (a namespace on its way) heal when others act; retried slowly.
    return new TransientError(error.reason, error.message, { cause: error });
  }
  return new TransientError('Unknown', error instanceof Error ? error.message : String(error), { cause: error });
}
