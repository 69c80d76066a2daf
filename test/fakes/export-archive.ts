/** Archives of the format of exports, whole or wrong on purpose, without a workspace. */
import { HEADER, MANIFEST, manifestLine, REQUESTS, sha256Of } from '../../operator/files/export/format.ts';
import { BLOCK, padding, tarHeader, type TarHeader } from '../../operator/files/export/tar-header.ts';

export type Part = Readonly<{ header: Partial<TarHeader> & { name: string }; content?: Buffer | string; raw?: Buffer }>;

export const AT = '2026-01-02T03:04:05.000006Z';
const ID = '00000000-0000-7000-8000-000000000001';

export function headerPart(more: object = {}): Part {
  const header = { format: 1, workspace: { name: 'w' }, version: 2, seq: 3, headOnly: false, createdAt: AT, ...more };
  return { header: { name: HEADER }, content: `${JSON.stringify(header)}\n` };
}

export function lines(name: string, ...rows: readonly (object | string)[]): Part {
  const text = rows.map((row) => `${typeof row === 'string' ? row : JSON.stringify(row)}\n`).join('');
  return { header: { name }, content: text };
}

export function file(path: string, content: string, mode = 0o644): Part {
  return { header: { name: `files${path}`, mode, mtime: 1_700_000_000 }, content };
}

export function link(path: string, target: string): Part {
  return { header: { name: `files${path}`, type: 'symlink', linkname: target, mode: 0o777 } };
}

const regular = (version: number, path: string, content: string, executable = false) => ({
  ...{ version, path, kind: 'regular', executable, size: Buffer.byteLength(content), sha256: sha256Of(content) },
});
const blob = (content: string): Part => ({ header: { name: `blobs/${sha256Of(content)}` }, content });

/** One of everything, whole; a test takes out, puts in and changes what it is about. */
export function wholeParts(): Part[] {
  const blobs = [blob('older'), blob('printed'), blob('{"large":1}')].toSorted((a, b) =>
    a.header.name < b.header.name ? -1 : 1,
  );
  return [
    headerPart(),
    file('/a', 'newer'),
    link('/l', '/etc/passwd'),
    file('/run.sh', '#!', 0o755),
    file('/ü\n', ''),
    ...blobs,
    lines(
      'history/000001.jsonl',
      regular(1, '/a', 'older'),
      { version: 1, path: '/l', kind: 'symlink', executable: false, size: 11, target: '/etc/passwd' },
      regular(1, '/run.sh', '#!', true),
      regular(1, '/ü\n', ''),
      { ...regular(2, '/a', 'newer'), execution: ID },
    ),
    lines(
      'versions/000001.jsonl',
      ...[1, 2].map((version) => ({
        version,
        seq: version,
        at: AT,
        origin: 'api',
        created: 1,
        changed: 0,
        deleted: 0,
      })),
    ),
    lines(
      'events/000001.jsonl',
      { seq: 1, type: 'noted', v: 1, at: AT, payload: { a: [1, 'é'] } },
      { seq: 2, type: 'noted', v: 1, at: AT, payloadSha256: sha256Of('{"large":1}') },
      { seq: 3, type: 'turn.ended', v: 1, at: AT, turn: ID, session: 'main', payload: null },
    ),
    lines('executions.jsonl', {
      ...{ id: ID, command: 'true', timeoutMs: 1, state: 'done', baseVersion: 1, version: 2, result: { exitCode: 0 } },
      ...{ outputSha256: sha256Of('printed'), dispatchedAt: AT, doneAt: AT },
    }),
    lines('kv.jsonl', { key: 'k', sha256: sha256Of('v'), updatedAt: AT, value: Buffer.from('v').toString('base64') }),
    lines(REQUESTS),
    lines('sessions.jsonl', { name: 'main', createdAt: AT }),
    lines('turns.jsonl', {
      ...{ id: ID, name: 't', session: 'main', spec: { command: 'true' }, specHash: 'h', phase: 'Completed', steps: 1 },
      ...{ queuedAt: AT, startedAt: AT, finishedAt: AT },
    }),
  ];
}

/** Of the head alone. */
export function headParts(...files: readonly Part[]): Part[] {
  return [headerPart({ headOnly: true }), ...files, lines('kv.jsonl')];
}

/** With the manifest that belongs to it, and its end. */
export function archiveOf(parts: readonly Part[], options: Readonly<{ manifest?: false; end?: false }> = {}): Buffer {
  const manifest = parts.map(lineOf).join('');
  const all = options.manifest === false ? parts : [...parts, { header: { name: MANIFEST }, content: manifest }];
  return Buffer.concat([...all.map(bytesOf), Buffer.alloc(options.end === false ? 0 : BLOCK * 2)]);
}

/** A header that says what ours never do, its checksum right. */
export function rawHeader(
  fields: Readonly<{ name: string; flag: string; size?: number; link?: string; mode?: number }>,
): Buffer {
  const bytes = tarHeader({ name: 'x', size: 0, mode: fields.mode ?? 0o644 });
  bytes.fill(0, 0, 100);
  bytes.write(fields.name, 0, 'latin1');
  bytes.write(`${(fields.size ?? 0).toString(8).padStart(11, '0')}\0`, 124, 'latin1');
  bytes.write(fields.flag, 156, 'latin1');
  bytes.write(fields.link ?? '', 157, 'latin1');
  return summed(bytes);
}

export function summed(block: Buffer): Buffer {
  block.write('        ', 148, 'latin1');
  let sum = 0;
  for (const byte of block.subarray(0, BLOCK)) sum += byte;
  block.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1');
  return block;
}

function bytesOf({ header, content = '', raw }: Part): Buffer {
  if (raw !== undefined) return raw;
  const bytes = Buffer.from(content);
  return Buffer.concat([
    tarHeader({ size: bytes.length, mode: 0o644, ...header }),
    bytes,
    Buffer.alloc(padding(bytes.length)),
  ]);
}

function lineOf({ header, content = '', raw }: Part): string {
  if (raw !== undefined) return '';
  const { name, type = 'file', mode = 0o644, linkname = '' } = header;
  const sha256 = sha256Of(type === 'symlink' ? linkname : Buffer.from(content));
  return manifestLine({ name, type, executable: type === 'file' && (mode & 0o111) !== 0, sha256 });
}
