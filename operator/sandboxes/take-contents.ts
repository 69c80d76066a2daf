/** Contents on their way from a sandbox. What they are is for whoever stores them to hash: an offered hash proves nothing. */
import type { Content } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { TransientError } from '../errors.ts';
import type { Meeting } from './meeting.ts';
import type { Session } from './session.ts';

export type Wanted = Readonly<{ sha256: Buffer; size: number }>;
export type Taking = Readonly<{ meeting: Meeting; execution: string }>;

/** A guest that is asked and says nothing at all for so long is not waited for. */
const SILENT_MS = 60_000;
/** How long one that went away may take to come back. */
const AWAY_MS = 30_000;
/** Of one batch (CONTRACTS 6); what is larger is asked for alone. */
export const BATCH_BYTES = 4 * 1024 * 1024;
const BATCH_FILES = 1_000;

/** One can't be had: it changed, it is gone, or nobody answers for it. */
export class NotHad extends Error {}

/** By hash (hex); what can't be had is left out. A batch: all of it is in memory. @throws TransientError SandboxLost */
export async function takeBatch(
  from: Taking,
  wanted: readonly Wanted[],
  signal: AbortSignal,
): Promise<ReadonlyMap<string, Buffer>> {
  const sizes = new Map(wanted.map(({ sha256, size }) => [sha256.toString('hex'), size]));
  const pieces = new Map<string, Buffer[]>();
  const whole = new Map<string, Buffer>();
  for await (const { sha256, data, error, last } of takePieces(from, wanted, signal)) {
    const hex = Buffer.from(sha256).toString('hex');
    const of = pieces.get(hex) ?? [];
    pieces.set(hex, of);
    of.push(data);
    if (!last || error !== '') continue;
    pieces.delete(hex);
    const content = of.length === 1 ? data : Buffer.concat(of);
    if (content.length === sizes.get(hex)) whole.set(hex, content);
  }
  return whole;
}

/** One content of any size. @throws NotHad; TransientError SandboxLost */
export async function* takeLarge(from: Taking, wanted: Wanted, signal: AbortSignal): AsyncIterable<Buffer> {
  for await (const { data, error } of takePieces(from, [wanted], signal)) {
    if (error !== '') throw new NotHad(error);
    yield data;
  }
}

/** In order, none over the limits but for a single one that is. */
export function* batchesOf(all: readonly Wanted[]): Iterable<readonly Wanted[]> {
  let batch: Wanted[] = [];
  let bytes = 0;
  for (const one of all) {
    if (batch.length === BATCH_FILES || (batch.length > 0 && bytes + one.size > BATCH_BYTES)) {
      yield batch;
      batch = [];
      bytes = 0;
    }
    batch.push(one);
    bytes += one.size;
  }
  if (batch.length > 0) yield batch;
}

/**
 * Pieces of each, without gaps; one with an error ends its content. After a cut it goes on from where it was, with
 * whatever guest is there then.
 */
async function* takePieces(from: Taking, wanted: readonly Wanted[], signal: AbortSignal): AsyncIterable<Content> {
  const left = new Map(wanted.map(({ sha256, size }) => [sha256.toString('hex'), { sha256, size, offset: 0n }]));
  using expected = from.meeting.expect([...left.keys()]);
  while (left.size > 0) {
    const session = await guestOf(from.meeting, signal);
    if (session === undefined) return yield* refused([...left.values()], 'the work container is gone');
    expected.inbox.clear();
    const of = [...left.values()];
    const value = { execution: from.execution, sha256: of.map((w) => w.sha256), from: of.map((w) => w.offset) };
    session.send({ $case: 'want', value });
    const silent = new AbortController();
    const until = AbortSignal.any([signal, session.guestSignal(), silent.signal]);
    while (left.size > 0) {
      const timer = setTimeout(() => silent.abort(), SILENT_MS);
      const piece = await expected.inbox
        .next(until)
        .catch(() => undefined)
        .finally(() => clearTimeout(timer));
      signal.throwIfAborted();
      if (piece === undefined) break;
      const hex = Buffer.from(piece.sha256).toString('hex');
      const one = left.get(hex);
      // Sent before the cut, and sent again.
      if (one === undefined || (piece.error === '' && piece.offset !== one.offset)) continue;
      one.offset += BigInt(piece.data.length);
      const tooLong = one.offset > BigInt(one.size);
      if (piece.last || tooLong) left.delete(hex);
      yield tooLong ? { ...piece, last: true, error: 'it grew while it was taken' } : piece;
    }
    if (silent.signal.aborted) return yield* refused([...left.values()], 'the sandbox does not answer');
  }
}

/** Undefined: a broker is there and its guest stays away. @throws TransientError SandboxLost when there is neither */
async function guestOf(meeting: Meeting, signal: AbortSignal): Promise<Session | undefined> {
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), AWAY_MS);
  try {
    return await meeting.sessionThat((session) => session.guestConnected(), AbortSignal.any([signal, late.signal]));
  } catch {
    signal.throwIfAborted();
    if (meeting.session !== undefined) return undefined;
    throw new TransientError('SandboxLost', 'the sandbox went away while a file was taken from it');
  } finally {
    clearTimeout(timer);
  }
}

function* refused(all: readonly Readonly<{ sha256: Buffer; offset: bigint }>[], error: string): Iterable<Content> {
  for (const { sha256, offset } of all) yield { sha256, offset, data: Buffer.alloc(0), last: true, error };
}
