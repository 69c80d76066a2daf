/** The members of a page of rows: their headers and hashes from the rows alone, their contents when they are asked for. */
import { createHash } from 'node:crypto';
import type { Cursor, ExportEntry, Scope, Section } from '../../store/export-store.ts';
import type { WorkspaceRow } from '../../store/rows.ts';
import { Contents, type Content } from './contents.ts';
import { sha256Of, type MemberEssence } from './format.ts';
import { outputsOf, readState, type Pin, type Stores } from './state.ts';
import { padding, tarHeaderBytes, type TarHeader } from './tar-header.ts';

/** A page: which rows its members are made of. */
export type Rows = Readonly<
  | { kind: 'made'; name: string; content: Buffer }
  | { kind: 'files'; after: string }
  | { kind: 'blobs'; after: Buffer }
  | { kind: 'lines'; section: Section; name: string; after: Cursor; size: number; sha256: string }
  | {
      kind: 'stored';
      name: string;
      size: number;
      sha256: string;
      parts: readonly Readonly<{ sha256: string; size: number }>[];
    }
>;
/** `read`: bytes of the content, from the first to before the second. */
export type Member = MemberEssence &
  Readonly<{ header: TarHeader; read: (from: number, to: number) => AsyncIterable<Buffer> }>;
export type Source = Readonly<{ store: Stores; workspace: WorkspaceRow; pin: Pin }>;

export const FILES_PAGE = 2_000;
export const BLOBS_PAGE = 2_000;
/** Rows of one member of lines: a few MB with the longest paths and payloads. */
export const LINES_PAGE: Readonly<Record<Section, number>> = { history: 1_000, versions: 1_000, events: 500 };

/** The members of a page. */
export async function* membersOf(source: Source, rows: Rows, signal?: AbortSignal): AsyncIterable<Member> {
  const { store, workspace } = source;
  const blob = (sha256: Buffer) => (from: number, to: number) =>
    store.readBlob(workspace.tenant, sha256, signal, { from, to });
  const contents = (all: readonly Content[]) => new Contents(source, all, signal);
  switch (rows.kind) {
    case 'made':
      yield text(rows.name, rows.content.length, sha256Of(rows.content), async function* (from, to) {
        yield rows.content.subarray(from, to);
      });
      return;
    case 'files': {
      const entries = await store.exportTree(scopeOf(source), rows.after, FILES_PAGE, signal);
      const small = contents(entries);
      for (const [i, entry] of entries.entries()) yield fileMember(entry, (from, to) => small.read(i, from, to));
      return;
    }
    case 'blobs': {
      const outputs = await outputsOf(
        store,
        workspace.tenant,
        await readState(store, workspace, source.pin, signal),
        signal,
      );
      const also = outputs.filter((hash) => hash.compare(rows.after) > 0).slice(0, BLOBS_PAGE);
      const entries = await store.exportBlobs(scopeOf(source), also, rows.after, BLOBS_PAGE, signal);
      const small = contents(entries);
      for (const [i, { sha256, size }] of entries.entries()) {
        const hex = sha256.toString('hex');
        yield text(`blobs/${hex}`, Number(size), hex, (from, to) => small.read(i, from, to));
      }
      return;
    }
    case 'lines':
      yield text(rows.name, rows.size, rows.sha256, async function* (from, to) {
        const lines = await store.exportLines(
          scopeOf(source),
          rows.section,
          rows.after,
          LINES_PAGE[rows.section],
          signal,
        );
        yield lines.subarray(from, to);
      });
      return;
    case 'stored':
      yield text(rows.name, rows.size, rows.sha256, async function* (from, to) {
        let at = 0;
        for (const { sha256, size } of rows.parts) {
          const [first, end] = [Math.max(0, from - at), Math.min(size, to - at)];
          if (first < end) yield* blob(Buffer.from(sha256, 'hex'))(first, end);
          at += size;
        }
      });
  }
}

/** With its header and what fills its last block. */
export function memberBytes(header: TarHeader): number {
  return tarHeaderBytes(header) + header.size + padding(header.size);
}

export function scopeOf({ workspace, pin }: Source): Scope {
  return { workspace: workspace.id, tenant: workspace.tenant, version: pin.version, seq: pin.seq };
}

export const file = (name: string, sha256: string): MemberEssence => ({
  name,
  type: 'file',
  executable: false,
  sha256,
});

function text(name: string, size: number, sha256: string, read: Member['read']): Member {
  return { ...file(name, sha256), header: { name, size, mode: 0o644 }, read };
}

const EMPTY = createHash('sha256').digest('hex');
function fileMember(
  { path, kind, executable, size, sha256, target, mtime }: ExportEntry,
  read: Member['read'],
): Member {
  const name = `files${path}${kind === 'directory' ? '/' : ''}`;
  if (kind === 'regular') {
    const hash = sha256?.toString('hex') ?? EMPTY;
    const header = { name, size: Number(size), mode: executable ? 0o755 : 0o644, mtime };
    return { name, type: 'file', executable, sha256: hash, header, read };
  }
  if (kind === 'directory')
    return {
      ...{ name, type: kind, executable: false, sha256: EMPTY, read },
      header: { name, type: kind, size: 0, mode: 0o755, mtime },
    };
  const linkname = target ?? '';
  return {
    ...{ name, type: kind, executable: false, sha256: sha256Of(linkname), read },
    header: { name, type: kind, size: 0, mode: 0o777, linkname, mtime },
  };
}

/** Of a member of the tree. */
export function pathOf({ name, type }: Member): string {
  return name.slice('files'.length, type === 'directory' ? -1 : undefined);
}
