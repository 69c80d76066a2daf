/**
 * A whole workspace as one tar that plain `tar` reads (docs/reference/export.md), from any byte on. What is held is one page
 * of rows and one chunk of a content.
 */
import { PermanentError } from '../../errors.ts';
import { manifestLine } from './format.ts';
import { membersOf, type Member, type Source } from './members.ts';
import { forgetPlan, manifestHeader, planExport, type Plan } from './plan.ts';
import { BLOCK, padding, tarHeader } from './tar-header.ts';

/** Bytes of the whole. Contents are not read for it. @throws PermanentError Gone */
export async function exportSize(source: Source): Promise<number> {
  return (await planExport(source)).size;
}

/**
 * Bytes of the tar from `offset` on, at most `length`, in pieces of up to a few MB. The same pin gives the same bytes.
 * @throws PermanentError Gone: begin anew
 */
export async function* exportRange(
  source: Source,
  offset: number,
  length: number,
  signal?: AbortSignal,
): AsyncIterable<Buffer> {
  try {
    yield* rangeOf(source, offset, length, signal);
  } catch (error) {
    if (!(error instanceof PermanentError) || (error.reason !== 'Gone' && error.reason !== 'NotFound')) throw error;
    forgetPlan(source);
    throw error.reason === 'Gone' ? error : moved(error);
  }
}

async function* rangeOf(
  source: Source,
  offset: number,
  length: number,
  signal: AbortSignal | undefined,
): AsyncIterable<Buffer> {
  const plan = await planExport(source);
  const window = new Window(offset, Math.min(plan.size, offset + length));
  for (let i = pageAt(plan, (page) => page.at + page.bytes > offset); i < plan.pages.length; i += 1) {
    const page = plan.pages[i];
    if (page === undefined || window.isPast(page.at)) break;
    window.at = page.at;
    for await (const member of membersOf(source, page, signal)) {
      signal?.throwIfAborted();
      if (window.isPast(window.at)) break;
      yield* bytesOf(member, window);
    }
    if (!window.isPast(window.at) && window.at !== page.at + page.bytes) throw moved();
  }
  if (window.isPast(plan.manifest.at)) return;
  window.at = plan.manifest.at;
  yield* window.take(manifestHeader(plan));
  yield* manifestBytes(source, plan, window, signal);
  yield* window.take(Buffer.alloc(padding(plan.manifest.bytes) + BLOCK * 2));
}

async function* bytesOf(member: Member, window: Window): AsyncIterable<Buffer> {
  yield* window.take(tarHeader(member.header));
  const { size } = member.header;
  const end = window.at + size;
  const [from, to] = window.within(size);
  window.at += from;
  if (from < to)
    for await (const piece of member.read(from, to)) {
      // More than was planned would move everything after it.
      if (window.at + piece.length > end) throw moved();
      yield* window.take(piece);
    }
  if (from < to && window.at !== end - (size - to)) throw moved();
  window.at = end;
  yield* window.take(Buffer.alloc(padding(size)));
}

/** Its lines are made anew, page by page. */
async function* manifestBytes(
  source: Source,
  plan: Plan,
  window: Window,
  signal: AbortSignal | undefined,
): AsyncIterable<Buffer> {
  const begin = window.at;
  const [from, to] = window.within(plan.manifest.bytes);
  if (from < to)
    for (let i = pageAt(plan, ({ manifest }) => manifest.at + manifest.bytes > from); i < plan.pages.length; i += 1) {
      const page = plan.pages[i];
      if (page === undefined || page.manifest.at >= to) break;
      window.at = begin + page.manifest.at;
      const lines: string[] = [];
      for await (const member of membersOf(source, page, signal)) lines.push(manifestLine(member));
      const text = Buffer.from(lines.join(''));
      if (text.length !== page.manifest.bytes) throw moved();
      yield* window.take(text);
    }
  window.at = begin + plan.manifest.bytes;
}

/** The first page of which `reaches` holds; of those after it, it holds too. */
function pageAt({ pages }: Plan, reaches: (page: Plan['pages'][number]) => boolean): number {
  let [low, high] = [0, pages.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    const page = pages[middle];
    if (page !== undefined && reaches(page)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** What of a stream is asked for, and where in it we are. */
class Window {
  at = 0;
  readonly #from: number;
  readonly #to: number;

  constructor(from: number, to: number) {
    this.#from = from;
    this.#to = to;
  }

  isPast(at: number): boolean {
    return at >= this.#to;
  }

  /** Which of the next `size` bytes are asked for. */
  within(size: number): [from: number, to: number] {
    const from = Math.min(size, Math.max(0, this.#from - this.at));
    return [from, Math.max(from, Math.min(size, this.#to - this.at))];
  }

  *take(bytes: Buffer): Iterable<Buffer> {
    const [from, to] = this.within(bytes.length);
    this.at += bytes.length;
    if (from < to) yield bytes.subarray(from, to);
  }
}

/** The history was thinned out, or a content collected, since this export began. */
function moved(cause?: unknown): PermanentError {
  return new PermanentError('Gone', 'what this export was begun with is not all there any more; begin anew', { cause });
}
