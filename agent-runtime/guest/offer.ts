/** What differs from the synced version, as pages that fit a frame; small files with their content in them. */
import { closeSync, readSync } from 'node:fs';
import {
  EntryKind,
  type CollectOptions,
  type Entry,
  type TreeOffer,
} from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { compileWalk } from '../../proto/globs.ts';
import type { Index, Indexed } from './index.ts';
import { scan, type Scan } from './scan.ts';
import { openPath } from './open-path.ts';

export type Offering = Readonly<{
  pages: readonly TreeOffer[];
  /** By hash (hex), for whoever asks for contents. */
  paths: ReadonlyMap<string, string>;
  /** The tree as it is now; undefined when it could not be listed. */
  index: Index | undefined;
}>;
export type OfferOptions = Readonly<{
  root: string;
  execution: string;
  baseVersion: bigint;
  collect: CollectOptions | undefined;
  /** The tree as it was at `baseVersion`. */
  before: Index;
  quietUntilMs: number;
  /** What was left out and told before; grows. A pipe in the tree is worth one remark, not one per command. */
  told: Set<string>;
}>;

const INLINE_BYTES = 16 * 1024;
/** Of one offer: what is over it is asked for, so that neither side holds a whole tree in memory. */
const INLINE_TOTAL_BYTES = 2 * 1024 * 1024;
const PAGE_BYTES = 192 * 1024;
/** All that the broker keeps of one offer, with room. */
const OFFER_BYTES = 24 * 1024 * 1024;
const MAX_TOLD = 10_000;
const KINDS = {
  regular: EntryKind.ENTRY_KIND_REGULAR,
  symlink: EntryKind.ENTRY_KIND_SYMLINK,
  directory: EntryKind.ENTRY_KIND_DIRECTORY,
} as const;

/** Never throws: a tree that can't be offered is said to be so. */
export function offer(options: OfferOptions): Offering {
  let found: Scan;
  try {
    found = scan(options.root, options.before, {
      ignored: compileWalk(options.collect?.ignored ?? []),
      maxEntries: options.collect?.maxEntries || 2_000_000,
      maxFileBytes: options.collect?.maxFileBytes || 1n << 40n,
      maxChangedBytes: OFFER_BYTES,
      quietUntilMs: options.quietUntilMs,
    });
  } catch (error) {
    return refused(options, error instanceof Error ? error.message : String(error));
  }
  const paths = new Map<string, string>();
  const changes: Entry[] = found.deleted.map((path) => deletedEntry(path));
  let inlineBytes = 0;
  for (const path of found.changed) {
    const of = found.index.get(path);
    if (of === undefined) continue;
    const entry = entryOf(path, of);
    if (of.kind === 'regular') {
      paths.set(Buffer.from(of.sha256, 'latin1').toString('hex'), path);
      if (of.size <= INLINE_BYTES && inlineBytes + of.size <= INLINE_TOTAL_BYTES) {
        const content = contentOf(options.root, path, of.size);
        if (content !== undefined) entry.inline = content;
        inlineBytes += of.size;
      }
    }
    changes.push(entry);
  }
  const bytes = changes.reduce((sum, change) => sum + sizeOf(change), 0);
  if (bytes > OFFER_BYTES)
    return refused(
      options,
      `${changes.length} changes at once are more than can be told of (${bytes} bytes of names and small files; ${OFFER_BYTES} are allowed)`,
    );
  const skipped = found.skipped.filter(({ path, reason }) => isNew(options.told, `${path} ${reason}`));
  const pages = pagesOf(changes).map((page, i, all) => ({
    ...empty(options),
    changes: page,
    skipped: i === 0 ? skipped : [],
    last: i === all.length - 1,
    files: found.index.size,
  }));
  return { pages, paths, index: found.index };
}

/** Of a command that did not run. */
export function nothingChanged(execution: string, baseVersion: bigint): TreeOffer {
  return { ...empty({ execution, baseVersion }), last: true };
}

export function deletedEntry(path: string): Entry {
  return { path, kind: EntryKind.ENTRY_KIND_DELETED, executable: false, size: 0n, sha256: Buffer.alloc(0), target: '' };
}

function refused(options: OfferOptions, reason: string): Offering {
  const page = { ...empty(options), skipped: [{ path: '/', reason }], last: true };
  return { pages: [page], paths: new Map(), index: undefined };
}

/** At least what it takes in a frame. */
function sizeOf({ path, target, inline }: Entry): number {
  return Buffer.byteLength(path) + Buffer.byteLength(target) + (inline?.length ?? 0) + 64;
}

function empty({ execution, baseVersion }: Readonly<{ execution: string; baseVersion: bigint }>): TreeOffer {
  return { execution, baseVersion, changes: [], skipped: [], last: false, files: 0 };
}

function entryOf(path: string, of: Indexed): Entry {
  const { kind, executable, size, sha256, target } = of;
  return {
    path,
    kind: KINDS[kind],
    executable,
    size: BigInt(size),
    sha256: Buffer.from(sha256, 'latin1'),
    target: target ?? '',
  };
}

function isNew(told: Set<string>, what: string): boolean {
  if (told.has(what)) return false;
  if (told.size < MAX_TOLD) told.add(what);
  return true;
}

/** At least one page. */
function pagesOf(changes: readonly Entry[]): Entry[][] {
  const all: Entry[][] = [[]];
  let bytes = 0;
  for (const change of changes) {
    const size = sizeOf(change);
    if (bytes + size > PAGE_BYTES && bytes > 0) {
      all.push([]);
      bytes = 0;
    }
    all.at(-1)?.push(change);
    bytes += size;
  }
  return all;
}

function contentOf(root: string, path: string, size: number): Buffer | undefined {
  const fd = openPath(root, path);
  if (fd === undefined) return undefined;
  try {
    const content = Buffer.alloc(size);
    return readSync(fd, content) === size ? content : undefined;
  } finally {
    closeSync(fd);
  }
}
