/** A change of one file as a unified patch, as `git apply` and `patch -p1` take it. Pure. */
import { isUtf8 } from 'node:buffer';
import { createTwoFilesPatch } from 'diff';

export type Side = Readonly<{
  kind: 'regular' | 'symlink' | 'directory';
  executable: boolean;
  content: Buffer | 'too large';
}>;

/**
 * Lines added and removed up to which the smallest change is looked for. The search takes their square, and nothing else
 * runs meanwhile: two unlike files of 64 KiB took 8 s; within this bound 1 MiB, the most that is shown, takes 0.2 to 0.8 s.
 */
const MAX_EDITS = 1_000;

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
  return `${head.join('\n')}\n--- ${from}\n+++ ${to}\n${hunksOf(old, now)}`;
}

/** The smallest change where it is found soon; else all lines go and all come, which is as right and longer. */
function hunksOf(old: string, now: string): string {
  const found = createTwoFilesPatch('a', 'b', old, now, undefined, undefined, { context: 3, maxEditLength: MAX_EDITS });
  // Its own first lines name the files without quotes and with a ruler.
  if (found !== undefined) return found.split('\n').slice(3).join('\n');
  const [gone, come] = [linesOf(old), linesOf(now)];
  const range = (count: number) => (count === 0 ? '0,0' : `1,${count}`);
  return `@@ -${range(gone.length)} +${range(come.length)} @@\n${signed('-', gone)}${signed('+', come)}`;
}

/** Each with its end; the last may have none. */
function linesOf(text: string): readonly string[] {
  return text.match(/[^\n]*\n|[^\n]+$/g) ?? [];
}

function signed(sign: '-' | '+', lines: readonly string[]): string {
  const text = lines.map((line) => `${sign}${line}`).join('');
  return text === '' || text.endsWith('\n') ? text : `${text}\n\\ No newline at end of file\n`;
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

/** As Git quotes names: those that would break a line, and those that would look like another one (CONTRACTS 8). */
function quoted(name: string): string {
  const special = /["\\\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{DI}]/gu;
  const escaped = name.replaceAll(special, (c) =>
    c === '"' || c === '\\'
      ? `\\${c}`
      : [...Buffer.from(c)].map((byte) => `\\${byte.toString(8).padStart(3, '0')}`).join(''),
  );
  return escaped === name ? name : `"${escaped}"`;
}
