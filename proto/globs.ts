/** Globs over workspace paths: `*` and `?` stay within a segment, `**` spans any number. A leading `/` is optional. */

/** Whether a path (`/src/a.js`; a folder with a `/` at its end) matches any of them. */
export function compileGlobs(patterns: readonly string[]): (path: string) => boolean {
  const all = patterns.map(
    (pattern) => new RegExp(`^${translate(pattern.startsWith('/') ? pattern : `/${pattern}`)}$`, 'su'),
  );
  return (path) => all.some((one) => one.test(path));
}

function translate(pattern: string): string {
  return pattern.replaceAll(/\/\*\*(?=\/)|\/\*\*$|\*+|\?|[.+^${}()|[\]\\]/g, (piece) => {
    switch (piece) {
      case '/**':
        return '(?:/.*)?';
      case '?':
        return '[^/]';
      default:
        return piece.startsWith('*') ? '[^/]*' : `\\${piece}`;
    }
  });
}
