/** A change of one file as a unified patch, as `git apply` and `patch -p1` take it. Pure. */
import { isUtf8 } from 'node:buffer';
import { createTwoFilesPatch } from 'diff';

export type Side = Readonly<{
  kind: 'regular' | 'symlink' | 'directory';
  executable: boolean;
  content: Buffer | 'too large';
}>;

/** Undefined on a side: there is nothing. Binary and too large contents are named, not shown. */
export function patchOf(path: string, before: Side | undefined, after: Side | undefined): string {
  const name = path.slice(1);
  const [from, to] = [
    before === undefined ? '/dev/null' : quoted(`a/${name}`),
    after === undefined ? '/dev/null' : quoted(`b/${name}`),
  ];
  const head = [`diff --git ${quoted(`a/${name}`)} ${quoted(`b/${name}`)}`];
  if (before === undefined && after !== undefined) head.push(`new file mode ${modeOf(after)}`);
  else if (after === undefined && before !== undefined) head.push(`deleted file mode ${modeOf(before)}`);
  else if (before !== undefined && after !== undefined && modeOf(before) !== modeOf(after))
    head.push(`old mode ${modeOf(before)}`, `new mode ${modeOf(after)}`);
  const [old, now] = [textOf(before), textOf(after)];
  if (old === undefined || now === undefined) return `${head.join('\n')}\nBinary files ${from} and ${to} differ\n`;
  if (old === now) return `${head.join('\n')}\n`;
  // Its own first lines name the files without quotes and with a ruler.
  const hunks = createTwoFilesPatch('a', 'b', old, now, undefined, undefined, { context: 3 }).split('\n').slice(3);
  return `${head.join('\n')}\n--- ${from}\n+++ ${to}\n${hunks.join('\n')}`;
}

/** Undefined: it can't be shown as text. */
function textOf(side: Side | undefined): string | undefined {
  if (side === undefined || side.kind === 'directory') return '';
  if (side.content === 'too large' || !isUtf8(side.content) || side.content.includes(0)) return undefined;
  return side.content.toString('utf8');
}

function modeOf({ kind, executable }: Side): string {
  return kind === 'symlink' ? '120000' : kind === 'directory' ? '040000' : executable ? '100755' : '100644';
}

/** As Git quotes names that would break a line. */
function quoted(name: string): string {
  if (!/["\\\p{Cc}]/u.test(name)) return name;
  const escaped = name.replaceAll(/["\\\p{Cc}]/gu, (c) =>
    c === '"' || c === '\\'
      ? `\\${c}`
      : [...Buffer.from(c)].map((byte) => `\\${byte.toString(8).padStart(3, '0')}`).join(''),
  );
  return `"${escaped}"`;
}
