/**
 * The two errors that cross a part's border. Whoever talks to something foreign (Kubernetes, Postgres, a model, a pod)
 * translates its failure once, by code and never by text, into one of them; only queues and loops retry.
 */
type Options = { cause?: unknown; retryAfterMs?: number };

/** Time may heal it: the same request can succeed later, unchanged. */
export class TransientError extends Error {
  readonly reason: string;
  /** Earliest moment that a retry makes sense, counted from now; absent: the retrier's own back-off. */
  readonly retryAfterMs: number | undefined;

  /**
   * @param reason one of the closed vocabulary (RESOURCES "Errors"), used as a condition's reason
   * @param message which object, what was seen (with numbers), what to do next
   */
  constructor(reason: string, message: string, options: Options = {}) {
    super(message, { cause: options.cause });
    this.name = 'TransientError';
    this.reason = reason;
    this.retryAfterMs = options.retryAfterMs;
  }
}

/** No retry can help until somebody changes something: it becomes a condition or a refusal. */
export class PermanentError extends Error {
  readonly reason: string;

  /** As TransientError. */
  constructor(reason: string, message: string, options: { cause?: unknown } = {}) {
    super(message, { cause: options.cause });
    this.name = 'PermanentError';
    this.reason = reason;
  }
}
