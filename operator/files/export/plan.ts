/**
 * Where everything of an export is, in pages of rows: a page remembers only its cursor, its length and what it adds to the
 * manifest, about 200 bytes for 2,000 files. Contents are not read for it. A part then finds its first page by bisection and
 * asks for the rows of that page alone, so that an export of N parts reads its rows twice (to plan, to send), not N times.
 */
import type { Cursor } from '../../store/export-store.ts';
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
import {
  BLOBS_PAGE,
  file,
  FILES_PAGE,
  LINES_PAGE,
  memberBytes,
  membersOf,
  pathOf,
  scopeOf,
  type Member,
  type Rows,
  type Source,
} from './members.ts';
import { readState, type Stores } from './state.ts';
import { BLOCK, tarHeader } from './tar-header.ts';

type Span = Readonly<{ at: number; bytes: number }>;
/** `manifest`: of what this page adds to the manifest's content. */
export type Page = Rows & Span & Readonly<{ manifest: Span }>;
export type Plan = Readonly<{
  size: number;
  pages: readonly Page[];
  /** Where the manifest's header begins, and how long its content is. */
  manifest: Span;
}>;

type Planned = Readonly<{ count: number; last: Member | undefined }>;

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

export function manifestHeader(plan: Plan): Buffer {
  return tarHeader({ name: MANIFEST, size: plan.manifest.bytes, mode: 0o644 });
}

function lineBytes(essence: MemberEssence): number {
  return Buffer.byteLength(manifestLine(essence));
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
