/**
 * A whole workspace as one tar that plain `tar` reads (docs/reference/export.md). The same workspace at the same version
 * gives the same bytes, so a transfer goes on at any byte. Nothing here holds more than one page of rows or one chunk.
 */
import { createHash } from 'node:crypto';
import { z } from 'zod';
import type { ApiStore, VersionRow } from '../store/api-store.ts';
import type { FileEntry, WorkspaceRow } from '../store/rows.ts';
import type { WorkspaceStore } from '../store/workspace-store.ts';
import { BLOCK, padding, tarHeader } from './tar-header.ts';

export const EXPORT_FORMAT = 1;
/** Rows of one member. */
const PAGE = 5_000;

export const exportHeader = z.object({
  format: z.literal(EXPORT_FORMAT),
  workspace: z.object({ name: z.string(), displayName: z.string().optional() }),
  version: z.int().min(0),
  seq: z.int().min(0),
  headOnly: z.boolean(),
});
export type ExportHeader = z.infer<typeof exportHeader>;
/** One line of `history/…`: what a version did to a path. `kind` may be `deleted`. */
export const historyLine = z.object({
  version: z.int().min(1),
  path: z.string().max(4_096),
  kind: z.enum(['regular', 'symlink', 'directory', 'deleted']),
  executable: z.boolean(),
  size: z.int().min(0),
  sha256: z
    .string()
    .regex(/^[0-9a-f]{64}$/)
    .optional(),
  target: z.string().max(4_096).optional(),
});
export type HistoryLine = z.infer<typeof historyLine>;
/** The last member, `manifest.json`: every other one with its hash; a cut export has none. */
export const manifest = z.object({
  members: z
    .array(
      z.tuple([
        z.string(),
        z
          .string()
          .regex(/^[0-9a-f]{64}$/)
          .or(z.literal('')),
      ]),
    )
    .max(2_000_000),
});

export type ExportOptions = Readonly<{ version: bigint; seq: bigint; headOnly: boolean }>;
type Source = Readonly<{ store: WorkspaceStore & ApiStore; workspace: WorkspaceRow; options: ExportOptions }>;
/** `read`: its content; a blob's hash, or bytes made anew. */
type Member = Readonly<{ head: Buffer; size: number; read: Buffer | (() => AsyncIterable<Buffer>) }>;

/** Bytes of the tar from `offset` on, at most `length`. @returns also how long the whole is */
export async function exportRange(
  source: Source,
  offset: number,
  length: number,
  signal: AbortSignal,
): Promise<Readonly<{ size: number; bytes: Buffer }>> {
  const pieces: Buffer[] = [];
  let left = length;
  let at = 0;
  const take = (bytes: Buffer) => {
    const from = Math.max(0, offset - at);
    if (left > 0 && from < bytes.length) {
      const piece = bytes.subarray(from, from + left);
      pieces.push(piece);
      left -= piece.length;
    }
    at += bytes.length;
  };
  for await (const { head, size, read } of members(source, signal)) {
    take(head);
    // What is wholly before or after is counted by its size and not read.
    if (at + size <= offset || left === 0) at += size;
    else if (Buffer.isBuffer(read)) {
      const { tenant } = source.workspace;
      const from = Math.max(0, offset - at);
      const to = Math.min(size, from + left);
      at += from;
      for await (const piece of source.store.readBlob(tenant, read, signal, { from, to })) take(piece);
      at += size - to;
    } else for await (const piece of read()) take(piece);
    take(Buffer.alloc(padding(size)));
  }
  take(Buffer.alloc(BLOCK * 2));
  return { size: at, bytes: Buffer.concat(pieces) };
}

/** In their order. The manifest comes from what was passed, so it is made on the way. */
async function* members(source: Source, signal: AbortSignal): AsyncIterable<Member> {
  const { store, workspace, options } = source;
  const all: [string, string][] = [];
  const made = (name: string, content: Buffer): Member => {
    all.push([name, createHash('sha256').update(content).digest('hex')]);
    return {
      head: tarHeader({ name, size: content.length, mode: 0o644 }),
      size: content.length,
      read: async function* () {
        yield content;
      },
    };
  };
  const header: ExportHeader = {
    format: EXPORT_FORMAT,
    workspace: {
      name: workspace.name,
      ...(workspace.spec.displayName === undefined ? {} : { displayName: workspace.spec.displayName }),
    },
    version: Number(options.version),
    seq: Number(options.seq),
    headOnly: options.headOnly,
  };
  yield made('lathe-export.json', Buffer.from(`${JSON.stringify(header, undefined, 2)}\n`));
  const inTree = new Set<string>();
  for await (const page of store.tree(workspace.id, options.version, signal))
    for (const entry of page) {
      const hash = entry.sha256?.toString('hex') ?? '';
      const name = `files${entry.path}${entry.kind === 'directory' ? '/' : ''}`;
      all.push([name, hash]);
      if (hash !== '') inTree.add(hash);
      yield fileMember(name, entry);
    }
  let page = 0;
  const lines = (folder: string, rows: readonly object[]) =>
    made(
      `${folder}/${String((page += 1)).padStart(6, '0')}.jsonl`,
      Buffer.from(rows.map((row) => `${JSON.stringify(row)}\n`).join('')),
    );
  if (!options.headOnly) {
    // Contents that only older versions have; each once.
    const passed = inTree;
    for await (const rows of history(source, signal)) {
      for (const { sha256, size } of rows) {
        if (sha256 === undefined || passed.has(sha256)) continue;
        passed.add(sha256);
        all.push([`blobs/${sha256}`, sha256]);
        yield {
          head: tarHeader({ name: `blobs/${sha256}`, size, mode: 0o644 }),
          size,
          read: Buffer.from(sha256, 'hex'),
        };
      }
      yield lines('history', rows);
    }
    page = 0;
    for (let before = options.version + 1n; ;) {
      const rows: readonly VersionRow[] = await store.versions(workspace.id, { before, limit: PAGE }, signal);
      if (rows.length > 0) yield lines('versions', rows.map(versionLine));
      if (rows.length < PAGE) break;
      before = rows.at(-1)?.version ?? 0n;
    }
    page = 0;
    for (let after = 0n; after < options.seq;) {
      const events = await store.readEvents(workspace.id, { after, limit: 1_000 }, signal);
      const kept = events.filter(({ seq }) => seq <= options.seq);
      if (kept.length > 0)
        yield lines(
          'events',
          kept.map((event) => ({ ...event, seq: Number(event.seq), epoch: undefined })),
        );
      if (events.length < 1_000) break;
      after = events.at(-1)?.seq ?? options.seq;
    }
  }
  page = 0;
  for (let after = ''; ;) {
    const keys = await store.listValues(workspace.id, { prefix: '', after, limit: 100 }, signal);
    const rows = [];
    for (const { key } of keys)
      rows.push({ key, value: (await store.getValue(workspace.id, key, signal))?.toString('base64') ?? '' });
    if (rows.length > 0) yield lines('kv', rows);
    if (keys.length < 100) break;
    after = keys.at(-1)?.key ?? '';
  }
  const content = Buffer.from(`${JSON.stringify({ members: all })}\n`);
  yield {
    head: tarHeader({ name: 'manifest.json', size: content.length, mode: 0o644 }),
    size: content.length,
    read: async function* () {
      yield content;
    },
  };
}

/** In order of version and path. */
async function* history({ store, workspace, options }: Source, signal: AbortSignal): AsyncIterable<HistoryLine[]> {
  let after: { version: bigint; path: string } = { version: 0n, path: '' };
  for (;;) {
    const rows = await store.history(workspace.id, { upTo: options.version, after, limit: PAGE }, signal);
    const last = rows.at(-1);
    if (last === undefined) return;
    yield rows.map((row) => ({
      version: Number(row.version),
      path: row.path,
      kind: row.kind,
      executable: row.executable,
      size: Number(row.size),
      ...(row.sha256 === null ? {} : { sha256: row.sha256.toString('hex') }),
      ...(row.target === null ? {} : { target: row.target }),
    }));
    if (rows.length < PAGE) return;
    after = { version: last.version, path: last.path };
  }
}

function fileMember(name: string, { kind, executable, size, sha256, target }: FileEntry): Member {
  const none = async function* (): AsyncIterable<Buffer> {
    // A link or an empty folder has no content.
  };
  if (kind === 'symlink') {
    const head = tarHeader({ name, type: 'symlink', linkname: target ?? '', size: 0, mode: 0o777 });
    return { head, size: 0, read: none };
  }
  if (kind === 'directory')
    return { head: tarHeader({ name, type: 'directory', size: 0, mode: 0o755 }), size: 0, read: none };
  return {
    head: tarHeader({ name, size: Number(size), mode: executable ? 0o755 : 0o644 }),
    size: Number(size),
    read: sha256 === null || size === 0n ? none : sha256,
  };
}

function versionLine({ version, at, ...row }: VersionRow): object {
  return { version: Number(version), at: at.toISOString(), ...row };
}
