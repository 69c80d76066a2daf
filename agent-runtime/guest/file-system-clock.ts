import { closeSync, constants, fstatSync, openSync, unlinkSync } from 'node:fs';
import { join } from 'node:path';
import { TEMPORARY } from './folders.ts';

/** open(2): a file without a name. Node does not export it. */
const O_TMPFILE = 0o20000000 | constants.O_DIRECTORY;

/** The time that a file written now would have: a volume that is mounted over a network has a clock of its own. */
export function fileSystemNowMs(folder: string): number {
  try {
    return timeOf(openSync(folder, O_TMPFILE | constants.O_RDWR, 0o600));
  } catch {
    // Not every file system has that.
  }
  const path = join(folder, `${TEMPORARY}-clock`);
  try {
    const now = timeOf(
      openSync(path, constants.O_CREAT | constants.O_EXCL | constants.O_RDWR | constants.O_NOFOLLOW, 0o600),
    );
    unlinkSync(path);
    return now;
  } catch {
    return Date.now();
  }
}

function timeOf(fd: number): number {
  try {
    return fstatSync(fd).ctimeMs;
  } finally {
    closeSync(fd);
  }
}
