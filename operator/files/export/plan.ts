/**
 * Where everything of an export is, in pages of rows: a page remembers only its cursor, its length and what it adds to the
 * manifest, about 200 bytes for 2,000 files. Contents are not read for it. A part then finds its first page by bisection and
 * asks for the rows of that page alone, so that an export of N parts reads its rows twice (to plan, to send), not N times.
 */
import { createHash } from 'node:crypto';
import type { Cursor, ExportEntry, Scope, Section } from '../../store/export-store.ts';
import type { WorkspaceRow } from '../../store/rows.ts';
import {
  EXPORT_FORMAT,
  HEADER,
  MANIFEST,
  manifestLine,
  PAGED,
  pageName,
  sha256Of,
  type ExportHeader,
  type MemberEssence,
} from './format.ts';
import { outputsOf, readState, type Pin, type Stores } from './state.ts';
import { BLOCK, padding, tarHeader, tarHeaderBytes, type TarHeader } from './tar-header.ts';

type Rows = Readonly<
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
type Span = Readonly<{ at: number; bytes: number }>;
/** `manifest`: of what this page adds to the manifest's content. */
export type Page = Rows & Span & Readonly<{ manifest: Span }>;
export type Plan = Readonly<{
  size: number;
  pages: readonly Page[];
  /** Where the manifest's header begins, and how long its content is. */
  manifest: Span;
}>;
/** `read`: bytes of the content, from the first to before the second. */
export type Member = MemberEssence &
  Readonly<{ header: TarHeader; read: (from: number, to: number) => AsyncIterable<Buffer> }>;
export type Source = Readonly<{ store: Stores; workspace: WorkspaceRow; pin: Pin }>;

type Planned = Readonly<{ count: number; last: Member | undefined }>;

const FILES_PAGE = 2_000;
const BLOBS_PAGE = 2_000;
/** What the store gives many of in one answer, and how much of it is asked for. */
const SMALL_BYTES = 256 * 1024;
const AHEAD_BYTES = 2 * 1024 * 1024;
/** Rows of one member of lines: a few MB with the longest paths and payloads. */
const LINES_PAGE: Readonly<Record<Section, number>> = { history: 1_000, versions: 1_000, events: 500 };
/** Plans that are kept, of whatever workspace. Another replica, or one that forgot, plans again and comes to the same. */
const KEPT = 64;
const kept = new WeakMap<Stores, Map<string, Promise<Plan>>>();

export function planExport(source: Source): Promise<Plan> {
  const plans = plansOf(source);
  const key = keyOf(source);
  const found = plans.get(key) ?? plan(source);
  // The last used is the last in the map.
  plans.delete(key);
  plans.set(key, found);
  found.catch(() => plans.delete(key));
  const [oldest] = plans.keys();
  if (plans.size > KEPT && oldest !== undefined) plans.delete(oldest);
  return found;
}

/** What was planned is not there any more. */
export function forgetPlan(source: Source): void {
  plansOf(source).delete(keyOf(source));
}

function plansOf({ store }: Source): Map<string, Promise<Plan>> {
  const plans = kept.get(store) ?? new Map<string, Promise<Plan>>();
  kept.set(store, plans);
  return plans;
}

function keyOf({ workspace, pin }: Source): string {
  return [workspace.id, workspace.name, pin.version, pin.seq, pin.headOnly, pin.state].join(' ');
}

async function plan(source: Source): Promise<Plan> {
  const { store, workspace, pin } = source;
  const scope = scopeOf(source);
  const pages: Page[] = [];
  let at = 0;
  let listed = 0;
  const add = (rows: Rows, bytes: number, manifestBytes: number) => {
    pages.push({ ...rows, at, bytes, manifest: { at: listed, bytes: manifestBytes } });
    at += bytes;
    listed += manifestBytes;
  };
  const text = (name: string, size: number, sha256: string, rows: Rows) =>
    add(rows, memberBytes({ name, size, mode: 0o644 }), lineBytes(file(name, sha256)));

  const header = Buffer.from(`${JSON.stringify(await headerOf(source), undefined, 2)}\n`);
  text(HEADER, header.length, sha256Of(header), { kind: 'made', name: HEADER, content: header });
  const essences = async (rows: Rows): Promise<Planned> => {
    let [bytes, manifestBytes, count] = [0, 0, 0];
    let last: Member | undefined;
    for await (const member of membersOf(source, rows)) {
      bytes += memberBytes(member.header);
      manifestBytes += lineBytes(member);
      count += 1;
      last = member;
    }
    if (count > 0) add(rows, bytes, manifestBytes);
    return { count, last };
  };
  for (let after: string | undefined = ''; after !== undefined;) {
    const { count, last }: Planned = await essences({ kind: 'files', after });
    after = count < FILES_PAGE || last === undefined ? undefined : pathOf(last);
  }
  const state = await readState(store, workspace, pin);
  if (!pin.headOnly) {
    for (let after: Buffer | undefined = Buffer.alloc(0); after !== undefined;) {
      const { count, last }: Planned = await essences({ kind: 'blobs', after });
      after = count < BLOBS_PAGE || last === undefined ? undefined : Buffer.from(last.sha256, 'hex');
    }
    for (const section of PAGED) {
      let after: Cursor = { a: 0n, b: '' };
      for (let number = 1; ; number += 1) {
        const page = await store.exportPlan(scope, section, after, LINES_PAGE[section]);
        if (page.rows === 0) break;
        const name = pageName(section, number);
        const sha256 = page.sha256.toString('hex');
        text(name, page.bytes, sha256, { kind: 'lines', section, name, after, size: page.bytes, sha256 });
        if (page.rows < LINES_PAGE[section]) break;
        after = page.last;
      }
    }
  }
  for (const { name, size, sha256, parts } of state.members)
    text(name, size, sha256, { kind: 'stored', name, size, sha256, parts });
  const manifest = { at, bytes: listed };
  return { pages, manifest, size: at + memberBytes({ name: MANIFEST, size: listed, mode: 0o644 }) + BLOCK * 2 };
}

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

type Content = Readonly<{ sha256: Buffer | null; size: bigint }>;

/** Contents of a page: small ones come many at once, for a query each would cost more than they do. */
class Contents {
  readonly #source: Source;
  readonly #all: readonly Content[];
  readonly #signal: AbortSignal | undefined;
  #held: ReadonlyMap<string, Buffer> = new Map();

  constructor(source: Source, all: readonly Content[], signal: AbortSignal | undefined) {
    this.#source = source;
    this.#all = all;
    this.#signal = signal;
  }

  async *read(index: number, from: number, to: number): AsyncIterable<Buffer> {
    const { store, workspace } = this.#source;
    const content = this.#all[index];
    if (content === undefined || content.sha256 === null || content.size === 0n) return;
    if (content.size > SMALL_BYTES) {
      yield* store.readBlob(workspace.tenant, content.sha256, this.#signal, { from, to });
      return;
    }
    const hex = content.sha256.toString('hex');
    if (!this.#held.has(hex))
      this.#held = await store.readSmallBlobs(workspace.tenant, this.#smallFrom(index), this.#signal);
    const bytes = this.#held.get(hex);
    // Nothing: whoever sends it sees that it is too short.
    if (bytes !== undefined) yield bytes.subarray(from, to);
  }

  #smallFrom(index: number): readonly Buffer[] {
    const hashes: Buffer[] = [];
    let bytes = 0;
    for (let i = index; i < this.#all.length && bytes < AHEAD_BYTES; i += 1) {
      const content = this.#all[i];
      if (content === undefined || content.sha256 === null || content.size > SMALL_BYTES) continue;
      hashes.push(content.sha256);
      bytes += Number(content.size);
    }
    return hashes;
  }
}

/** With its header and what fills its last block. */
export function memberBytes(header: TarHeader): number {
  return tarHeaderBytes(header) + header.size + padding(header.size);
}

export function manifestHeader(plan: Plan): Buffer {
  return tarHeader({ name: MANIFEST, size: plan.manifest.bytes, mode: 0o644 });
}

function lineBytes(essence: MemberEssence): number {
  return Buffer.byteLength(manifestLine(essence));
}

function scopeOf({ workspace, pin }: Source): Scope {
  return { workspace: workspace.id, tenant: workspace.tenant, version: pin.version, seq: pin.seq };
}

async function headerOf(source: Source): Promise<ExportHeader> {
  const { store, workspace, pin } = source;
  const { name, spec } = workspace;
  // Of the last event: the time at which somebody asked would make every export another one.
  const createdAt = await store.exportTime(scopeOf(source));
  return {
    format: EXPORT_FORMAT,
    workspace: { name, ...(spec.displayName === undefined ? {} : { displayName: spec.displayName }) },
    version: Number(pin.version),
    seq: Number(pin.seq),
    headOnly: pin.headOnly,
    ...(createdAt === undefined ? {} : { createdAt }),
  };
}

const file = (name: string, sha256: string): MemberEssence => ({ name, type: 'file', executable: false, sha256 });

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

function pathOf({ name, type }: Member): string {
  return name.slice('files'.length, type === 'directory' ? -1 : undefined);
}
