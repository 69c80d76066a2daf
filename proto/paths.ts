/**
 * The one rule for paths of a workspace (CONTRACTS 7), for API, guest, seeds and forged diffs alike. A path is absolute
 * within the workspace: `src/a.js`, `/src/a.js` and `/workspace/src/a.js` are the same file, `/src/a.js`.
 */
import { isUtf8 } from 'node:buffer';

export type PathResult = Readonly<{ path: string } | { refused: string }>;

export const MAX_PATH_BYTES = 4_096;
export const MAX_SEGMENT_BYTES = 255;
export const WORKSPACE_DIR = '/workspace';

/** Of what a person or program names. Nothing is rewritten but the prefix, doubled slashes and `.` segments. */
export function normalisePath(input: string | Uint8Array): PathResult {
  const result = canonicalPath(input);
  const absolute = typeof input === 'string' ? input.startsWith('/') : input[0] === 0x2f;
  if ('refused' in result || !absolute) return result;
  if (result.path === WORKSPACE_DIR) return { refused: `path ${escapeName(input)} names no file` };
  return result.path.startsWith(`${WORKSPACE_DIR}/`) ? { path: result.path.slice(WORKSPACE_DIR.length) } : result;
}

/** Of what is within the tree already (`/workspace/x` is then in a folder of that name). What names a parent is refused first. */
export function canonicalPath(input: string | Uint8Array): PathResult {
  const refuse = (why: string): PathResult => ({ refused: `path ${escapeName(input)} ${why}` });
  if (typeof input !== 'string' && !isUtf8(input)) return refuse('is not UTF-8');
  const text = typeof input === 'string' ? input : Buffer.from(input).toString('utf8');
  if (typeof input === 'string' && !input.isWellFormed()) return refuse('is not UTF-8');
  if (Buffer.byteLength(text) > MAX_PATH_BYTES) return refuse(`is longer than ${MAX_PATH_BYTES} bytes`);
  if (text.includes('\0')) return refuse('has a NUL in it');
  const segments = text.split('/');
  // Before anything is normalised: `a/../b` would come back inside, and is refused all the same.
  if (segments.includes('..')) return refuse('has a .. segment');
  const kept = segments.filter((segment) => segment !== '' && segment !== '.');
  if (kept.length === 0) return refuse('names no file');
  if (kept.some((segment) => Buffer.byteLength(segment) > MAX_SEGMENT_BYTES))
    return refuse(`has a segment longer than ${MAX_SEGMENT_BYTES} bytes`);
  return { path: `/${kept.join('/')}` };
}

/** A name as people may see it: what can't be seen or turns text around, and broken bytes, are spelled out. At most 200 characters. */
export function escapeName(name: string | Uint8Array): string {
  const text = typeof name === 'string' ? name : Buffer.from(name).toString('utf8');
  const shown = [...text]
    .map((c) =>
      /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{DI}\uFFFD"\\]/u.test(c) ? `\\u{${(c.codePointAt(0) ?? 0).toString(16)}}` : c,
    )
    .join('');
  return `"${shown.length > 200 ? `${shown.slice(0, 200)}…` : shown}"`;
}
