/**
 * What may be committed of a diff. Guards are pure and run in this order, each once, for every way of writing:
 * paths → scope → sizes → counts → (secrets) → deletions → (approval). A guard refuses paths; the rest goes on.
 */
import { parseQuantity } from '../../crds/quantity.ts';
import type { EffectiveSpec } from '../../crds/types.ts';
import { compileGlobs } from '../../proto/globs.ts';
import { canonicalPath, escapeName } from '../../proto/paths.ts';
import type { Change } from '../store/rows.ts';

export type Refusal = Readonly<{ path: string; reason: string; message: string }>;
/** Of the workspace before the diff; `sizeOf`: bytes of a path there, undefined where nothing is. */
export type Before = Readonly<{ files: number; bytes: number; sizeOf: (path: string) => number | undefined }>;
export type Rules = EffectiveSpec['files'];
export type Verdict = Readonly<{ commit: readonly Change[]; refused: readonly Refusal[] }>;
type Guard = (changes: readonly Change[], before: Before, rules: Rules) => Verdict;

/** Where a sandbox writes files before they have their names. */
const OURS = '/.lathe-tmp';

export const GUARDS: readonly Readonly<{ name: string; guard: Guard }>[] = [
  { name: 'paths', guard: paths },
  { name: 'scope', guard: scope },
  { name: 'sizes', guard: sizes },
  { name: 'total', guard: total },
  { name: 'counts', guard: counts },
  { name: 'deletions', guard: deletions },
];

/** `mayDelete`: deletions are not held; whoever asks may approve, or puts a whole tree in place of another. */
export function runGuards(
  changes: readonly Change[],
  before: Before,
  rules: Rules,
  { mayDelete = false }: Readonly<{ mayDelete?: boolean }> = {},
): Verdict {
  let commit = changes;
  const refused: Refusal[] = [];
  for (const { name, guard } of GUARDS) {
    if (mayDelete && name === 'deletions') continue;
    const verdict = guard(commit, before, rules);
    commit = verdict.commit;
    refused.push(...verdict.refused);
  }
  const verdict = whatStays(commit, changes);
  return { commit: verdict.commit, refused: [...refused, ...verdict.refused] };
}

/** What a refused deletion leaves where it is wins over what would need its place: a path is a file or a folder. */
function whatStays(commit: readonly Change[], changes: readonly Change[]): Verdict {
  const kept = new Set(commit);
  const stays = new Set(changes.filter((c) => c.op === 'delete' && !kept.has(c)).map((c) => c.path));
  if (stays.size === 0) return { commit, refused: [] };
  const folders = new Set([...stays].flatMap(foldersOf));
  return each(commit, (change) => {
    if (change.op === 'delete') return undefined;
    const above = foldersOf(change.path).find((folder) => stays.has(folder));
    const winner = above ?? (folders.has(change.path) ? `what is below ${change.path}` : undefined);
    if (winner === undefined) return undefined;
    const message = `${escapeName(change.path)} would need the place of ${escapeName(winner)}, which was not allowed to be deleted and stays`;
    return { path: change.path, reason: 'Conflict', message };
  });
}

/** `/a` and `/a/b` of `/a/b/c`. */
function foldersOf(path: string): string[] {
  const segments = path.split('/');
  return segments.slice(2).map((_, i) => segments.slice(0, i + 2).join('/'));
}

/** One rule for a path wherever it comes from; a diff says it in one form only. */
function paths(changes: readonly Change[]): Verdict {
  return each(changes, ({ path }) => {
    const result = canonicalPath(path);
    if ('refused' in result) return { path: escapeName(path), reason: 'PathRefused', message: result.refused };
    if (path.startsWith(OURS))
      return { path, reason: 'PathRefused', message: `names in the root that begin with ${OURS.slice(1)} are ours` };
    return result.path === path
      ? undefined
      : { path: escapeName(path), reason: 'PathRefused', message: `path ${escapeName(path)} is not in its one form` };
  });
}

function scope(changes: readonly Change[], _before: Before, rules: Rules): Verdict {
  if (rules.writable === undefined) return { commit: changes, refused: [] };
  const allowed = compileGlobs(rules.writable);
  return each(changes, ({ path }) =>
    allowed(path)
      ? undefined
      : {
          path,
          reason: 'ScopeRefused',
          message: `${escapeName(path)} is outside of what files.writable allows (${rules.writable?.join(', ')})`,
        },
  );
}

function sizes(changes: readonly Change[], _before: Before, rules: Rules): Verdict {
  const limit = bytes(rules.maxFileSize);
  return each(changes, (change) =>
    change.op === 'put' && change.size > limit
      ? {
          path: change.path,
          reason: 'FileTooLarge',
          message: `${escapeName(change.path)} has ${change.size} bytes, files.maxFileSize is ${rules.maxFileSize}`,
        }
      : undefined,
  );
}

/** In the order of the diff: what still fits is taken. */
function total(changes: readonly Change[], before: Before, rules: Rules): Verdict {
  const limit = bytes(rules.maxTotalSize);
  let sum = before.bytes;
  for (const change of changes) if (change.op === 'delete') sum -= before.sizeOf(change.path) ?? 0;
  return each(changes, (change) => {
    if (change.op === 'delete') return undefined;
    const grown = sum + change.size - (before.sizeOf(change.path) ?? 0);
    if (grown > limit && grown > sum) {
      return {
        path: change.path,
        reason: 'WorkspaceFull',
        message: `with ${escapeName(change.path)} the workspace would have ${grown} bytes, files.maxTotalSize is ${rules.maxTotalSize}`,
      };
    }
    sum = grown;
    return undefined;
  });
}

function counts(changes: readonly Change[], before: Before, rules: Rules): Verdict {
  let files = before.files;
  for (const change of changes) if (change.op === 'delete' && before.sizeOf(change.path) !== undefined) files -= 1;
  return each(changes, (change) => {
    if (change.op === 'delete' || before.sizeOf(change.path) !== undefined) return undefined;
    if (files + 1 > rules.maxFiles) {
      return {
        path: change.path,
        reason: 'TooManyFiles',
        message: `with ${escapeName(change.path)} the workspace would have ${files + 1} files, files.maxFiles is ${rules.maxFiles}`,
      };
    }
    files += 1;
    return undefined;
  });
}

/** A diff that empties the workspace is more often an accident than a wish. A tree that is moved is deleted and made in one diff: what is made counts against what is deleted. */
function deletions(changes: readonly Change[], before: Before, rules: Rules): Verdict {
  const gone = changes.filter((c) => c.op === 'delete' && before.sizeOf(c.path) !== undefined);
  const lost = gone.length - changes.filter((c) => c.op === 'put' && before.sizeOf(c.path) === undefined).length;
  const { ratio, atLeast } = rules.deletions;
  if (lost < atLeast || lost * 100 <= before.files * ratio) return { commit: changes, refused: [] };
  const message = `${gone.length} of ${before.files} files would be deleted; from ${atLeast} files and ${ratio} % on that is held, and here undone`;
  return {
    commit: changes.filter((c) => c.op !== 'delete'),
    refused: changes.filter((c) => c.op === 'delete').map(({ path }) => ({ path, reason: 'DeletionsHeld', message })),
  };
}

function each(changes: readonly Change[], refuse: (change: Change) => Refusal | undefined): Verdict {
  const commit: Change[] = [];
  const refused: Refusal[] = [];
  for (const change of changes) {
    const refusal = refuse(change);
    if (refusal === undefined) commit.push(change);
    else refused.push(refusal);
  }
  return { commit, refused };
}

function bytes(quantity: string): number {
  return parseQuantity(quantity) ?? 0;
}
