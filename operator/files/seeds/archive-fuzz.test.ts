/** Archives with anything in them: a tree within the limits comes out, or a refusal. Never a crash, a hang or an escape. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createHash } from 'node:crypto';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { canonicalPath } from '../../../proto/paths.ts';
import { tarOf, zipOf, type TarEntry, type ZipEntry } from '../../../test/fakes/archives.ts';
import { PermanentError } from '../../errors.ts';
import type { Change } from '../../store/rows.ts';
import { untar } from './tar.ts';
import { SeedTree, type Limits } from './tree.ts';
import { unzip } from './zip.ts';

const RUNS = Number(process.env['LATHE_FUZZ_RUNS'] ?? 300);
const LIMITS: Limits = { fileBytes: 300_000, totalBytes: 500_000, files: 20, entries: 60 };
let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'lathe-fuzz-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** Counts what is stored, keeps none of it. */
function counting() {
  const stored = { bytes: 0 };
  const digest = (content: Buffer) => createHash('sha256').update(content).digest();
  return {
    stored,
    putBlobs: async (_tenant: string, contents: readonly Buffer[]) => {
      for (const content of contents) stored.bytes += content.length;
      return contents.map(digest);
    },
    putBlobStream: async (_tenant: string, source: AsyncIterable<Buffer>) => {
      const hash = createHash('sha256');
      let size = 0;
      for await (const piece of source) {
        hash.update(piece);
        size += piece.length;
      }
      stored.bytes += size;
      return { sha256: hash.digest(), size };
    },
  };
}

async function unpacked(bytes: Buffer, unpack: (path: string, tree: SeedTree, signal: AbortSignal) => Promise<void>) {
  const path = join(folder, 'archive');
  await writeFile(path, bytes);
  const signal = AbortSignal.timeout(10_000);
  const store = counting();
  const tree = new SeedTree(LIMITS, store, 'tenant', signal);
  try {
    await unpack(path, tree, signal);
    return { changes: await tree.finish(), stored: store.stored.bytes };
  } catch (error) {
    // Anything else is a fault of ours.
    expect(error).toBeInstanceOf(PermanentError);
    return undefined;
  }
}

function isFine(result: Awaited<ReturnType<typeof unpacked>>): void {
  if (result === undefined) return;
  const { changes, stored } = result;
  const files = changes.filter((c) => c.op === 'put' && c.kind !== 'directory');
  expect(files.length).toBeLessThanOrEqual(LIMITS.files);
  expect(changes.reduce((sum, c) => sum + (c.op === 'put' ? c.size : 0), 0)).toBeLessThanOrEqual(LIMITS.totalBytes);
  expect(stored).toBeLessThanOrEqual(LIMITS.entries * LIMITS.fileBytes);
  const kinds = new Map(changes.map((c) => [c.path, c]));
  for (const change of changes) {
    expect(canonicalPath(change.path)).toEqual({ path: change.path });
    if (change.op === 'put' && change.kind === 'regular') expect(change.sha256).toHaveLength(32);
    for (let parent = up(change.path); parent !== ''; parent = up(parent)) expect(kinds.has(parent)).toBe(false);
  }
}
const up = (path: string) => path.slice(0, path.lastIndexOf('/'));

const segment = fc.oneof(
  fc.constantFrom(
    'a',
    'b',
    'c',
    '.',
    '..',
    '',
    'a b',
    '..\\',
    '%2e%2e',
    'é',
    'e\u0301',
    '💡',
    '-rf',
    'x'.repeat(255),
    'x'.repeat(256),
  ),
  fc.string({ unit: 'binary', maxLength: 12 }),
);
const name = fc.array(segment, { minLength: 1, maxLength: 5 }).map((segments) => segments.join('/'));
const content = fc.oneof(
  fc.uint8Array({ maxLength: 2_000 }).map((bytes) => Buffer.from(bytes)),
  fc.integer({ min: 0, max: 400_000 }).map((size) => Buffer.alloc(size, 'z')),
);
const tarEntry: fc.Arbitrary<TarEntry> = fc
  .record({
    name,
    type: fc.constantFrom('file', 'file', 'file', 'directory', 'symlink', 'link', 'fifo', 'contiguous-file' as const),
    linkname: name,
    mode: fc.integer({ min: 0, max: 0o7777 }),
    content,
  })
  .map(
    ({ content, ...entry }) => ({ ...entry, content: entry.type === 'file' ? content : Buffer.alloc(0) }) as TarEntry,
  );
const zipEntry: fc.Arbitrary<ZipEntry> = fc.record(
  {
    name: fc.oneof(
      name,
      fc.uint8Array({ minLength: 1, maxLength: 20 }).map((bytes) => Buffer.from(bytes)),
    ),
    content,
    mode: fc.constantFrom(0o100644, 0o100755, 0o120777, 0o040755, 0o140755, 0),
    claimedSize: fc.nat(1_000_000),
    stored: fc.boolean(),
  },
  { requiredKeys: ['name', 'content'] },
);
/** Bytes that are put somewhere, and perhaps an early end. */
const damage = fc.record({
  at: fc.array(fc.tuple(fc.double({ min: 0, max: 1, noNaN: true }), fc.integer({ min: 0, max: 255 })), {
    maxLength: 8,
  }),
  keep: fc.oneof(
    { weight: 3, arbitrary: fc.constant(1) },
    { weight: 1, arbitrary: fc.double({ min: 0, max: 1, noNaN: true }) },
  ),
});
function damaged(bytes: Buffer, { at, keep }: { at: readonly (readonly [number, number])[]; keep: number }): Buffer {
  const out = Buffer.from(bytes.subarray(0, Math.ceil(bytes.length * keep)));
  for (const [where, value] of at)
    if (out.length > 0) out[Math.min(out.length - 1, Math.floor(where * out.length))] = value;
  return out;
}
const strip = fc.constantFrom(0, 0, 1, 3);

/** A header that the packer can't write is a case less. */
const packed = (entries: readonly TarEntry[]) => tarOf(entries).catch(() => Buffer.alloc(1_024));

test(
  `F11, F5: ${RUNS} tars with anything in them, whole and damaged, before and after compression`,
  { timeout: 240_000 },
  () =>
    fc.assert(
      fc.asyncProperty(
        fc.array(tarEntry, { maxLength: 25 }),
        damage,
        damage,
        strip,
        fc.boolean(),
        async (entries, inner, outer, n, isZstd) => {
          const tar = damaged(await packed(entries), inner);
          const bytes = damaged(isZstd ? zstdCompressSync(tar) : gzipSync(tar), outer);
          isFine(
            await unpacked(bytes, (path, tree, signal) =>
              untar(path, isZstd ? 'tar.zst' : 'tar.gz', n, tree, LIMITS, signal),
            ),
          );
        },
      ),
      { numRuns: RUNS },
    ),
);

test(`F11, F5: ${RUNS} zips with anything in them, whole and damaged`, { timeout: 240_000 }, () =>
  fc.assert(
    fc.asyncProperty(fc.array(zipEntry, { maxLength: 25 }), damage, strip, async (entries, outer, n) => {
      isFine(await unpacked(damaged(zipOf(entries), outer), (path, tree, signal) => unzip(path, n, tree, signal)));
    }),
    { numRuns: RUNS },
  ),
);

test('honest archives come out whole', async () => {
  const entries = [
    { name: 'a/b', content: Buffer.from('b') },
    { name: 'a/c', content: Buffer.alloc(290_000) },
  ];
  const paths = (result: { changes: readonly Change[] } | undefined) => result?.changes.map((c) => c.path);
  const gz = gzipSync(await tarOf(entries));
  expect(paths(await unpacked(gz, (path, tree, signal) => untar(path, 'tar.gz', 0, tree, LIMITS, signal)))).toEqual([
    '/a/b',
    '/a/c',
  ]);
  expect(paths(await unpacked(zipOf(entries), (path, tree, signal) => unzip(path, 1, tree, signal)))).toEqual([
    '/b',
    '/c',
  ]);
});
