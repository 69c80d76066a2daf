/** What people and programs see: tables, JSON, YAML, and how far it is. Names are spelled out where a terminal would obey them. */
import { stringify } from 'yaml';
import type { WriteResult } from '../proto/live/types.ts';
import { escapeName } from '../proto/paths.ts';
import type { Progress } from '../sdk/index.ts';

export const FORMATS = ['table', 'wide', 'json', 'yaml'] as const;
export type Format = (typeof FORMATS)[number];
export type Column<T> = readonly [title: string, value: (item: T) => string];
export type Output = Readonly<{
  format: Format;
  table<T>(items: readonly T[], columns: readonly Column<T>[], wide?: readonly Column<T>[]): void;
  object(object: unknown): void;
  results(results: readonly WriteResult[]): void;
  /** For people, on standard output. */
  say(line: string): void;
  /** Made by us: no name in it obeys anybody (patches are escaped by line on a terminal). */
  text(text: string): void;
  bytes(bytes: Buffer): Promise<void>;
  /** A bar on standard error, where that is a terminal and the work is long. */
  progress(what: string, totalBytes?: number): (progress: Progress) => void;
  /** Ends a bar. */
  done(): void;
}>;

type Sink = Readonly<{ write(data: string | Uint8Array, callback: () => void): unknown; isTTY?: boolean }>;
/** Before it nobody asks how far it is. */
const SILENT_MS = 700;
const EVERY_MS = 100;

export function createOutput(format: Format, stdout: Sink, stderr: Sink): Output {
  let drawn = false;
  const started = performance.now();
  let drawnAt = 0;
  const print = (text: string) => void stdout.write(text, () => undefined);
  const structured = (value: unknown) =>
    print(format === 'yaml' ? stringify(value) : `${JSON.stringify(value, undefined, 2)}\n`);
  const isStructured = format === 'json' || format === 'yaml';
  const output: Output = {
    format,
    table: (items, columns, wide = []) => {
      if (isStructured) {
        structured(items);
        return;
      }
      const all = format === 'wide' ? [...columns, ...wide] : columns;
      const rows = [all.map(([title]) => title), ...items.map((item) => all.map(([, value]) => plain(value(item))))];
      const widths = all.map((_, i) => Math.max(...rows.map((row) => [...(row[i] ?? '')].length)));
      for (const row of rows)
        print(
          `${row
            .map((cell, i) => cell + ' '.repeat((widths[i] ?? 0) - [...cell].length))
            .join('  ')
            .trimEnd()}\n`,
        );
    },
    object: (object) => {
      if (isStructured) structured(object);
      else print(stringify(object));
    },
    results: (results) => {
      if (isStructured) {
        structured(results.length === 1 ? results[0] : results);
        return;
      }
      for (const { version, committed, dryRun, files, refused } of results) {
        const counts = `${files.created} created, ${files.changed} changed, ${files.deleted} deleted`;
        print(
          dryRun
            ? `would be: ${counts}\n`
            : committed
              ? `version ${version}: ${counts}\n`
              : `nothing changed, version ${version}\n`,
        );
        for (const { reason, message } of refused) print(`refused, ${reason}: ${message}\n`);
      }
    },
    say: (line) => {
      if (!isStructured) print(`${plain(line)}\n`);
    },
    text: (text) => print(stdout.isTTY === true ? text.split('\n').map(plain).join('\n') : text),
    bytes: (bytes) => new Promise((resolve) => stdout.write(bytes, () => resolve())),
    progress: (what, knownBytes) => (progress) => {
      const now = performance.now();
      if (stderr.isTTY !== true || now - started < SILENT_MS || now - drawnAt < EVERY_MS) return;
      drawnAt = now;
      drawn = true;
      const { doneBytes, totalBytes = knownBytes, doneFiles, totalFiles } = progress;
      const share = totalBytes === undefined || totalBytes === 0 ? undefined : Math.min(1, doneBytes / totalBytes);
      const bar =
        share === undefined ? '' : `[${'='.repeat(Math.round(share * 20)).padEnd(20)}] ${Math.round(share * 100)} % `;
      const files =
        totalFiles === undefined ? `${doneFiles} files, ` : totalFiles > 1 ? `${doneFiles}/${totalFiles} files, ` : '';
      const rate = doneBytes / Math.max(0.001, (now - started) / 1_000) / 1_048_576;
      const line = `${plain(what)} ${bar}${files}${(doneBytes / 1_048_576).toFixed(1)} MiB, ${rate.toFixed(1)} MiB/s`;
      stderr.write(`\r\u001B[K${line}`, () => undefined);
    },
    done: () => {
      if (drawn) stderr.write('\r\u001B[K', () => undefined);
    },
  };
  return output;
}

/** As it is where that does no harm, else in quotes with everything invisible spelled out. */
export function plain(text: string): string {
  const escaped = escapeName(text);
  return escaped.slice(1, -1) === text || ([...text].length > 200 && !/[\p{Cc}\p{Cf}\p{DI}\p{Zl}\p{Zp}]/u.test(text))
    ? text
    : text.replaceAll(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{DI}]/gu, (c) =>
        c === '\t' ? c : `\\u{${(c.codePointAt(0) ?? 0).toString(16)}}`,
      );
}
