/** Every error as `metav1.Status`, so that kubectl and client libraries print and sort it well. */
import { TransientError, PermanentError } from '../errors.ts';
import type { Status } from '../../proto/live/types.ts';

/** HTTP status by reason; RESOURCES "Errors" and Kubernetes' own. What is not listed: 422, or 503 where time may heal it. */
const CODES: Readonly<Record<string, number>> = {
  BadRequest: 400,
  PathRefused: 400,
  Unauthorized: 401,
  Forbidden: 403,
  ScopeRefused: 403,
  SecretInDiff: 403,
  QuotaExceeded: 403,
  NotFound: 404,
  MethodNotAllowed: 405,
  NotAcceptable: 406,
  Conflict: 409,
  DeletionsHeld: 409,
  Gone: 410,
  PreconditionFailed: 412,
  FileTooLarge: 413,
  WorkspaceFull: 413,
  TooManyFiles: 413,
  RequestEntityTooLarge: 413,
  RangeNotSatisfiable: 416,
  TooManyRequests: 429,
  Unknown: 500,
  StoreUnavailable: 503,
  ServiceUnavailable: 503,
};

export function statusOf(error: unknown, name?: string): Status {
  const known = error instanceof PermanentError || error instanceof TransientError;
  const reason = known ? error.reason : 'Unknown';
  const transient = error instanceof TransientError;
  const code = CODES[reason] ?? (transient ? 503 : known ? 422 : 500);
  return {
    kind: 'Status',
    apiVersion: 'v1',
    metadata: {},
    status: 'Failure',
    // What is no error of ours may hold anything; it goes to the log, not to the caller.
    message: known ? error.message : 'an internal error; the log of lathe api has it',
    reason,
    code,
    ...(name === undefined && !transient
      ? {}
      : {
          details: {
            ...(name === undefined ? {} : { name, group: 'live.lathe.dev', kind: 'workspaces' }),
            ...(transient ? { retryAfterSeconds: Math.ceil((error.retryAfterMs ?? 1_000) / 1_000) } : {}),
          },
        }),
  };
}
