/** What a write by a person or program does to the tree: one kind of entry per path, no file above a file. Pure. */
import { escapeName } from '../../proto/paths.ts';
import { PermanentError } from '../errors.ts';
import { above } from '../store/files.ts';
import type { Change, FileEntry } from '../store/rows.ts';
import type { Ground } from '../store/workspace-store.ts';
import type { Refusal } from './guards.ts';

export type Write = Readonly<{
  /** Canonical. */
  path: string;
  kind: 'regular' | 'symlink' | 'directory' | 'deleted';
  /** Absent: as it is, or false. */
  executable?: boolean;
  /** Bytes, of regular files. */
  size: number;
  sha256?: Buffer;
  target?: string;
  /** `absent`: nothing may be there; a hash: this content must be there. */
  ifMatch?: 'absent' | Buffer;
  /** Of `deleted`: NotFound where nothing is. */
  mustExist?: boolean;
  /** Of `deleted`: with everything below it. */
  recursive?: boolean;
}>;

export type WritePlan = Readonly<{
  changes: readonly Change[];
  refused: readonly Refusal[];
  /** Folders that may have nothing in them afterwards. */
  perhapsEmpty: readonly string[];
}>;

/**
 * In order; of a path that comes twice the last counts. What would change nothing is left out.
 * @param below what is in the folders that are removed with everything
 * @throws PermanentError PreconditionFailed, NotFound: then nothing of the write is done
 */
export function planWrite(
  writes: readonly Write[],
  ground: Ground,
  below: ReadonlyMap<string, readonly FileEntry[]>,
): WritePlan {
  const planned = new Map<string, Change>();
  const refused: Refusal[] = [];
  const removed = new Set<string>();
  /** Folders with something in them because of this write. */
  const filled = new Set<string>();
  const isRemoved = (path: string) => removed.has(path) || above(path).some((folder) => removed.has(folder));
  const known = new Map(ground.entries);
  for (const entries of below.values()) for (const entry of entries) known.set(entry.path, entry);
  /** What is at a path after the writes so far: a kind, or nothing. */
  const kindAt = (path: string): string | undefined => {
    const change = planned.get(path);
    if (change !== undefined) return change.op === 'put' ? change.kind : undefined;
    return known.get(path)?.kind;
  };
  const drop = (path: string) => {
    const old = known.get(path);
    if (old === undefined) planned.delete(path);
    else planned.set(path, { path, op: 'delete', base: old.version });
  };

  for (const write of writes) {
    const { path } = write;
    const old = known.get(path);
    checkPrecondition(write, kindAt(path) === undefined ? undefined : old);
    if (write.kind === 'deleted') {
      const isFolder = (ground.folders.has(path) && !isRemoved(path)) || filled.has(path);
      if (write.recursive === true) {
        for (const entry of below.get(path) ?? []) drop(entry.path);
        for (const other of planned.keys()) if (other.startsWith(`${path}/`)) drop(other);
        removed.add(path);
        filled.delete(path);
      } else if (isFolder) {
        refused.push(conflict(path, 'is a folder with files in it; remove it with everything (recursive)'));
        continue;
      }
      if (write.mustExist === true && kindAt(path) === undefined && !isFolder)
        throw new PermanentError('NotFound', `there is nothing at ${escapeName(path)}`);
      drop(path);
      continue;
    }
    const blocked = above(path).find((folder) => !['directory', undefined].includes(kindAt(folder)));
    if (blocked !== undefined) {
      const what = kindAt(blocked) === 'symlink' ? 'a symlink, which is not followed' : 'a file';
      refused.push(conflict(path, `can't be written: ${escapeName(blocked)} is ${what}; remove it first`));
      continue;
    }
    if ((ground.folders.has(path) && !isRemoved(path)) || filled.has(path)) {
      // A folder with something in it is no entry; it is there already.
      if (write.kind !== 'directory') refused.push(conflict(path, 'is a folder with files in it; remove it first'));
      continue;
    }
    for (const folder of above(path)) {
      filled.add(folder);
      if (kindAt(folder) === 'directory') drop(folder);
    }
    const change = changeOf(write, old);
    if (change === undefined) planned.delete(path);
    else planned.set(path, change);
  }
  const changes = [...planned.values()];
  const gone = changes.filter((change) => change.op === 'delete' && known.get(change.path)?.kind !== 'directory');
  const parents = gone.flatMap(({ path }) => above(path).slice(0, 1));
  const roots = [...removed].flatMap((path) => above(path).slice(0, 1));
  const perhapsEmpty = [...new Set([...parents, ...roots])].filter(
    (folder) => !filled.has(folder) && !isRemoved(folder) && kindAt(folder) === undefined,
  );
  return { changes, refused, perhapsEmpty };
}

/** Undefined: it is so already. */
function changeOf(write: Write, old: FileEntry | undefined): Change | undefined {
  const { path, kind, size, sha256, target } = write;
  if (kind === 'deleted') return undefined;
  const executable = kind === 'regular' && (write.executable ?? old?.executable ?? false);
  if (old?.kind === kind && old.executable === executable) {
    if (kind === 'directory') return undefined;
    if (kind === 'symlink' && old.target === target) return undefined;
    if (kind === 'regular' && sha256 !== undefined && old.sha256?.equals(sha256) === true) return undefined;
  }
  return {
    path,
    op: 'put',
    kind,
    executable,
    size: kind === 'symlink' ? Buffer.byteLength(target ?? '') : kind === 'regular' ? size : 0,
    base: old?.version ?? 0n,
    ...(kind === 'regular' && sha256 !== undefined ? { sha256 } : {}),
    ...(kind === 'symlink' && target !== undefined ? { target } : {}),
  };
}

function checkPrecondition({ path, ifMatch }: Write, there: FileEntry | undefined): void {
  if (ifMatch === undefined) return;
  const seen =
    there === undefined
      ? 'nothing is there'
      : there.sha256 === null
        ? `there is a ${there.kind}`
        : `its content is "${there.sha256.toString('hex')}"`;
  if (ifMatch === 'absent') {
    if (there !== undefined)
      throw new PermanentError('PreconditionFailed', `${escapeName(path)} exists already: ${seen}`);
  } else if (there?.sha256?.equals(ifMatch) !== true) {
    throw new PermanentError(
      'PreconditionFailed',
      `${escapeName(path)} is not what If-Match says: ${seen}; read it again and decide anew`,
    );
  }
}

function conflict(path: string, why: string): Refusal {
  return { path, reason: 'Conflict', message: `${escapeName(path)} ${why}` };
}
