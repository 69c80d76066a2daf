import { PermanentError } from '../../errors.ts';

/** What is not, or not wholly, what an export is. */
export function broken(why: string): PermanentError {
  return new PermanentError('BadRequest', `this is no whole export of a workspace: ${why}`);
}
