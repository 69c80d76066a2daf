/** The command line was not understood; exit code 2. */
export class UsageError extends Error {
  override name = 'UsageError';
}
