/** What the live API refused, as errors that a program can tell apart. */
import type { Status } from '../proto/live/types.ts';

/** `reason`: one of RESOURCES "Errors" or of Kubernetes' own; `code`: the HTTP status, 0 where nothing answered. */
export class LatheError extends Error {
  readonly reason: string;
  readonly code: number;
  readonly retryAfterMs: number | undefined;

  constructor(reason: string, code: number, message: string, options: { cause?: unknown; retryAfterMs?: number } = {}) {
    super(message, { cause: options.cause });
    this.name = new.target.name;
    this.reason = reason;
    this.code = code;
    this.retryAfterMs = options.retryAfterMs;
  }
}
/** The workspace, the file, the version or the upload is not there. */
export class NotFoundError extends LatheError {}
/** The user may not. */
export class ForbiddenError extends LatheError {}
/** Something else is there, or changed meanwhile (also: a precondition that does not hold). */
export class ConflictError extends LatheError {}
/** A guard refused it: path, scope, size, count, deletions, secrets, quota. */
export class RefusedError extends LatheError {}
/** Nobody answered, or could: the same request may succeed later. */
export class UnavailableError extends LatheError {}

const REFUSALS: readonly string[] = [
  'PathRefused',
  'ScopeRefused',
  'FileTooLarge',
  'TooManyFiles',
  'WorkspaceFull',
  'DeletionsHeld',
  'QuotaExceeded',
  'SecretInDiff',
];

/** @param body of the answer; what is no `metav1.Status` is shown by its first 200 characters */
export function errorOf(code: number, body: string, retryAfter: string | undefined): LatheError {
  let status: Partial<Status> = {};
  try {
    status = JSON.parse(body) as Partial<Status>;
  } catch {
    // Somebody between us and the API answered.
  }
  const reason = status.reason ?? (code === 401 ? 'Unauthorized' : 'Unknown');
  const message = status.message ?? `the API answered ${code}: ${body.slice(0, 200)}`;
  const seconds = Number(retryAfter);
  const options = Number.isFinite(seconds) && retryAfter !== undefined ? { retryAfterMs: seconds * 1_000 } : {};
  const kind = REFUSALS.includes(reason)
    ? RefusedError
    : code === 404
      ? NotFoundError
      : code === 401 || code === 403
        ? ForbiddenError
        : code === 409 || code === 412
          ? ConflictError
          : code === 429 || code >= 502
            ? UnavailableError
            : LatheError;
  return new kind(reason, code, message, options);
}
