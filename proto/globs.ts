/**
 * Globs over workspace paths: `*` and `?` stay within a segment, `**` spans any number of segments, none included. A
 * leading `/` is optional. Patterns come from tenants, so no regular expressions: the time is at most the product of the
 * two lengths, whatever is written.
 */

/** A segment as it must be, or the code points of one with `*` and `?` in it; `**`: any number of segments. */
type Segment = string | readonly string[] | typeof ANY;
const ANY = Symbol('**');

/** The same for whoever walks a tree, and enters no folder that matches. */
export type Globs = Readonly<{
  matches(path: string): boolean;
  /** Of a name in a folder (`/src`; the root is empty) that does not match itself: nothing above need be looked at. */
  matchesIn(folder: string, name: string): boolean;
}>;

export function compileWalk(patterns: readonly string[]): Globs {
  const compiled = patterns.map(compile);
  const names = new Set(compiled.flatMap(anywhere));
  const others = compiled.filter((pattern) => anywhere(pattern).length === 0);
  return {
    matches: compileGlobs(patterns),
    matchesIn: (folder, name) =>
      names.has(name) || others.some((other) => matchPath(other, segmentsOf(`${folder}/${name}`))),
  };
}

/** Whether a path (`/src/a.js`; of a folder with or without a `/` at its end) matches any of them. */
export function compileGlobs(patterns: readonly string[]): (path: string) => boolean {
  const compiled = patterns.map(compile);
  // Most patterns name a folder wherever it is (`**/node_modules/**`): one look-up per segment, however many there are.
  const names = new Set(compiled.flatMap(anywhere));
  const others = compiled.filter((pattern) => anywhere(pattern).length === 0);
  return (path) =>
    (names.size > 0 && hasSegment(path, names)) || others.some((other) => matchPath(other, segmentsOf(path)));
}

function compile(pattern: string): readonly Segment[] {
  return segmentsOf(pattern).map((segment) => {
    if (segment === '**') return ANY;
    return /[*?]/.test(segment) ? [...segment.replaceAll(/\*+/g, '*')] : segment;
  });
}

function anywhere([before, name, after, ...rest]: readonly Segment[]): string[] {
  return before === ANY && typeof name === 'string' && after === ANY && rest.length === 0 ? [name] : [];
}

function hasSegment(path: string, names: ReadonlySet<string>): boolean {
  for (let from = path.startsWith('/') ? 1 : 0; from < path.length;) {
    const slash = path.indexOf('/', from);
    const end = slash === -1 ? path.length : slash;
    if (names.has(path.slice(from, end))) return true;
    from = end + 1;
  }
  return false;
}

function segmentsOf(path: string): readonly string[] {
  return path.replace(/^\//, '').replace(/\/$/, '').split('/');
}

function matchPath(pattern: readonly Segment[], path: readonly string[]): boolean {
  return matchSequence(
    pattern,
    path,
    (piece) => piece === ANY,
    (piece, segment) =>
      typeof piece === 'string' ? piece === segment : piece !== ANY && matchSegment(piece, [...segment]),
  );
}

function matchSegment(pattern: readonly string[], text: readonly string[]): boolean {
  return matchSequence(
    pattern,
    text,
    (piece) => piece === '*',
    (piece, c) => piece === '?' || piece === c,
  );
}

/**
 * Wildcards over a sequence. Only the last wildcard is ever tried again: one before it that took more could only leave
 * less to those that follow.
 */
function matchSequence<P, T>(
  pattern: readonly P[],
  text: readonly T[],
  isWild: (piece: P) => boolean,
  equal: (piece: P, item: T) => boolean,
): boolean {
  let at = 0;
  let wild = -1;
  let taken = 0;
  for (let i = 0; i < text.length;) {
    const piece = pattern[at];
    const item = text[i];
    if (at < pattern.length && piece !== undefined && isWild(piece)) {
      wild = at;
      taken = i;
      at += 1;
    } else if (at < pattern.length && piece !== undefined && item !== undefined && equal(piece, item)) {
      at += 1;
      i += 1;
    } else if (wild >= 0) {
      at = wild + 1;
      taken += 1;
      i = taken;
    } else return false;
  }
  return pattern.slice(at).every(isWild);
}
