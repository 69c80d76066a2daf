/** From what a sandbox offers to changes with their bases, and to counts for people. Pure. */
import { EntryKind, type Entry } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { Change, FileCounts, FileEntry } from '../store/rows.ts';

/** Paths shown of each kind at most (RESOURCES "status"). */
const SHOWN = 20;
const KINDS = {
  [EntryKind.ENTRY_KIND_REGULAR]: 'regular',
  [EntryKind.ENTRY_KIND_SYMLINK]: 'symlink',
  [EntryKind.ENTRY_KIND_DIRECTORY]: 'directory',
} as const;

/** `at`: the offered paths as they were at the version that the sandbox had synced. What would change nothing is left out. */
export function changesOf(offered: readonly Entry[], at: ReadonlyMap<string, FileEntry>): readonly Change[] {
  return offered.flatMap((entry): Change[] => {
    const old = at.get(entry.path);
    const base = old?.version ?? 0n;
    if (entry.kind === EntryKind.ENTRY_KIND_DELETED)
      return old === undefined ? [] : [{ path: entry.path, op: 'delete', base }];
    const kind = KINDS[entry.kind as keyof typeof KINDS];
    if (kind === undefined) return [];
    const sha256 = kind === 'regular' ? Buffer.from(entry.sha256) : undefined;
    const target = kind === 'symlink' ? entry.target : undefined;
    if (
      old !== undefined &&
      old.kind === kind &&
      old.executable === entry.executable &&
      (old.target ?? undefined) === target
    ) {
      if (kind === 'regular' ? sha256 !== undefined && old.sha256?.equals(sha256) === true : true) return [];
    }
    const size = kind === 'regular' ? Number(entry.size) : kind === 'symlink' ? Buffer.byteLength(entry.target) : 0;
    return [
      {
        path: entry.path,
        op: 'put',
        kind,
        executable: kind === 'regular' && entry.executable,
        size,
        base,
        ...(sha256 ? { sha256 } : {}),
        ...(target === undefined ? {} : { target }),
      },
    ];
  });
}

/** What was really committed. Folders are not counted: they come and go with what is in them. */
export function countChanges(changes: readonly Change[], at: ReadonlyMap<string, FileEntry>): FileCounts {
  const counted = changes.filter((c) => (c.op === 'put' ? c.kind : at.get(c.path)?.kind) !== 'directory');
  const isNew = (c: Change) => at.get(c.path) === undefined;
  return {
    created: counted.filter((c) => c.op === 'put' && isNew(c)).length,
    changed: counted.filter((c) => c.op === 'put' && !isNew(c)).length,
    deleted: counted.filter((c) => c.op === 'delete').length,
    paths: counted.slice(0, SHOWN).map((c) => c.path),
  };
}

/** The tree as a sandbox is told it. */
export function entryOf(file: FileEntry, inline?: Buffer): Entry {
  const kinds = {
    regular: EntryKind.ENTRY_KIND_REGULAR,
    symlink: EntryKind.ENTRY_KIND_SYMLINK,
    directory: EntryKind.ENTRY_KIND_DIRECTORY,
  } as const;
  return {
    path: file.path,
    kind: kinds[file.kind],
    executable: file.executable,
    size: file.size,
    sha256: file.sha256 ?? Buffer.alloc(0),
    target: file.target ?? '',
    ...(inline === undefined ? {} : { inline }),
  };
}

export function deletedEntry(path: string): Entry {
  return { path, kind: EntryKind.ENTRY_KIND_DELETED, executable: false, size: 0n, sha256: Buffer.alloc(0), target: '' };
}
