/** What is taken for an export and what is not, whatever somebody sends; no store is needed for that. */
import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  archiveOf,
  AT,
  file,
  headerPart,
  headParts,
  lines,
  link,
  rawHeader,
  summed,
  wholeParts,
  type Part,
} from '../../../test/fakes/export-archive.ts';
import type { ImportStore } from '../../store/import-store.ts';
import type { WorkspaceRow } from '../../store/rows.ts';
import type { WorkspaceStore } from '../../store/workspace-store.ts';
import { KV_LIMITS } from '../../../proto/live/types.ts';
import { sha256Of } from '../export/format.ts';
import { BLOCK, tarHeader } from '../export/tar-header.ts';
import { importWorkspace, type ImportOptions, type ImportResult } from './import.ts';

const files = {
  ignored: [],
  maxFileSize: '1Mi',
  maxTotalSize: '8Mi',
  maxFiles: 1_000,
  deletions: { ratio: 50, atLeast: 20 },
};
const owner = {
  workspace: { id: 'w', tenant: 't', effective: { files } } as unknown as WorkspaceRow,
  lease: { workspace: 'w', incarnation: 1n, epoch: 1n, token: 't' },
};

/** Takes everything; says what it was given. */
function recorder() {
  const staged: [string, unknown][] = [];
  const log: string[] = [];
  const store: ImportStore & Pick<WorkspaceStore, 'putBlobs' | 'putBlobStream'> = {
    beginImport: async () => 'import',
    stageImport: async (_lease, _id, kind, rows) =>
      void staged.push(...rows.map((row): [string, unknown] => [kind, row])),
    finishImport: async (_lease, _id, { head }) => {
      log.push('finished');
      return { head: BigInt(head), files: 0n, bytes: 0n };
    },
    dropImport: async () => void log.push('dropped'),
    putBlobs: async (_tenant, contents) => contents.map((content) => createHash('sha256').update(content).digest()),
    putBlobStream: async (_tenant, source) => {
      const hash = createHash('sha256');
      let size = 0;
      for await (const piece of source) {
        hash.update(piece);
        size += piece.length;
      }
      return { sha256: hash.digest(), size };
    },
  };
  return { store: store as unknown as WorkspaceStore & ImportStore, staged, log };
}

async function* inPieces(bytes: Buffer, size = 4_096): AsyncIterable<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function read(
  bytes: Buffer | AsyncIterable<Buffer>,
  options?: ImportOptions,
  pieces?: number,
): Promise<ImportResult> {
  const { store, log } = recorder();
  try {
    const result = await importWorkspace(
      store,
      owner,
      Buffer.isBuffer(bytes) ? inPieces(bytes, pieces) : bytes,
      options,
    );
    expect(log).toEqual(['finished']);
    return result;
  } catch (error) {
    // Whatever it was, what was kept aside is gone and nothing became of it.
    expect(log).toEqual(['dropped']);
    throw error;
  }
}

/** @returns why it was refused; anything but a refusal with a reason fails the test */
async function refusal(
  bytes: Buffer | AsyncIterable<Buffer>,
  options?: ImportOptions,
): Promise<{ reason: string; message: string }> {
  const error: unknown = await read(bytes, options).then(
    () => new Error('it was taken'),
    (e: unknown) => e,
  );
  if (!(error instanceof Error) || !('reason' in error)) throw error;
  return { reason: String(error.reason), message: error.message };
}

const without = (name: string) => wholeParts().filter(({ header }) => header.name !== name);
const valueLine = (key: string) => ({ key, sha256: sha256Of('v'), updatedAt: AT, value: 'dg==' });
const instead = (part: Part) => wholeParts().map((p) => (p.header.name === part.header.name ? part : p));

describe('a whole export', () => {
  test('is taken, in pieces of any size, with everything it has', async () => {
    const bytes = archiveOf(wholeParts());
    const { store, staged } = recorder();
    await importWorkspace(store, owner, inPieces(bytes));
    const count = (kind: string) => staged.filter(([k]) => k === kind).length;
    expect(['file', 'content', 'history', 'version', 'event', 'execution', 'kv', 'session', 'turn'].map(count)).toEqual(
      [4, 6, 5, 2, 3, 1, 1, 1, 1],
    );
    expect(staged.find(([kind]) => kind === 'file')?.[1]).toMatchObject({
      path: '/a',
      kind: 'regular',
      executable: false,
      size: 5,
    });
    for (const size of [1, 7, 511, 512, 513, bytes.length])
      expect(await read(bytes, {}, size)).toMatchObject({ version: 2n, versions: 2, events: 3, turns: 1, kv: 1 });
  });

  test('a content above 1 MiB is streamed into the store and has its hash', async () => {
    const big = 'b'.repeat((1 << 20) + 1);
    const { store, staged } = recorder();
    const roomy = {
      ...owner,
      workspace: {
        ...owner.workspace,
        effective: { ...owner.workspace.effective, files: { ...files, maxFileSize: '2Mi' } },
      },
    };
    await importWorkspace(store, roomy, inPieces(archiveOf(headParts(file('/big', big)))));
    expect(staged).toEqual([
      [
        'file',
        expect.objectContaining({
          path: '/big',
          size: big.length,
          sha256: createHash('sha256').update(big).digest('hex'),
        }),
      ],
    ]);
  });
});

describe('F6, fuzz: what is not whole', () => {
  test('cut at any byte it is refused', { timeout: 120_000 }, async () => {
    const bytes = archiveOf(wholeParts());
    for (let at = 0; at < bytes.length; at += at % BLOCK < 3 ? 1 : 13)
      expect((await refusal(bytes.subarray(0, at))).reason).toBe('BadRequest');
  });

  test('with any bytes changed it is refused: nothing in it goes unread', { timeout: 120_000 }, async () => {
    const bytes = archiveOf(wholeParts());
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.nat(bytes.length - 1), fc.nat(255)), { minLength: 1, maxLength: 6 }),
        async (edits) => {
          const changed = Buffer.from(bytes);
          for (const [at, value] of edits) changed[at] = value;
          if (changed.equals(bytes)) return;
          expect(['BadRequest', 'PathRefused']).toContain((await refusal(changed)).reason);
        },
      ),
      { numRuns: 3_000 },
    );
  });

  test('with blocks left out, doubled or swapped it is refused', { timeout: 120_000 }, async () => {
    const bytes = archiveOf(wholeParts());
    const block = fc.nat(bytes.length / BLOCK - 1);
    await fc.assert(
      fc.asyncProperty(block, block, fc.constantFrom('drop', 'double', 'swap', 'insert'), async (a, b, how) => {
        const blocks = Array.from({ length: bytes.length / BLOCK }, (_, i) =>
          bytes.subarray(i * BLOCK, (i + 1) * BLOCK),
        );
        const [one, other] = [blocks[a] ?? bytes, blocks[b] ?? bytes];
        if (how === 'drop') blocks.splice(a, 1);
        else if (how === 'double') blocks.splice(a, 0, one);
        else if (how === 'insert') blocks.splice(a, 0, other);
        else [blocks[a], blocks[b]] = [other, one];
        const changed = Buffer.concat(blocks);
        if (changed.equals(bytes)) return;
        expect(['BadRequest', 'PathRefused']).toContain((await refusal(changed)).reason);
      }),
      { numRuns: 1_500 },
    );
  });

  test(
    'a header whose checksum fits what was changed in it is refused, unless only a time was',
    { timeout: 120_000 },
    async () => {
      const bytes = archiveOf(wholeParts());
      const headers = Array.from({ length: bytes.length / BLOCK }, (_, i) => i * BLOCK).filter(
        (at) => bytes.subarray(at + 257, at + 262).toString('latin1') === 'ustar',
      );
      await fc.assert(
        fc.asyncProperty(fc.constantFrom(...headers), fc.nat(511), fc.nat(255), async (at, offset, value) => {
          const isSum = offset >= 148 && offset < 156;
          const isTime = offset >= 136 && offset < 148;
          if (isSum || isTime) return;
          const changed = Buffer.from(bytes);
          changed[at + offset] = value;
          summed(changed.subarray(at, at + BLOCK));
          if (changed.equals(bytes)) return;
          expect(['BadRequest', 'PathRefused']).toContain((await refusal(changed)).reason);
        }),
        { numRuns: 3_000 },
      );
    },
  );

  test('noise is refused', async () => {
    await fc.assert(
      fc.asyncProperty(fc.uint8Array({ maxLength: 3_000 }), async (noise) => {
        expect((await refusal(Buffer.from(noise))).reason).toBe('BadRequest');
      }),
      { numRuns: 300 },
    );
  });
});

describe('hostile archives', () => {
  const evil = (name: string): Part => ({ header: { name }, content: 'x' });
  test.for<[situation: string, bytes: () => Buffer, says: RegExp]>([
    ['F11: a name that leads out', () => archiveOf(headParts(evil('files/../../etc/x'))), /has a \.\. segment/],
    [
      'F11: a parent that would come back inside',
      () => archiveOf(headParts(evil('files/a/../b'))),
      /has a \.\. segment/,
    ],
    ['F11: a doubled slash, an absolute name', () => archiveOf(headParts(evil('files//etc/x'))), /one form/],
    ['F11: a segment that is a dot', () => archiveOf(headParts(evil('files/./a'))), /one form/],
    ['F11: a trailing slash on a file', () => archiveOf(headParts(evil('files/a/'))), /one form|no file/],
    ['F11: an empty name', () => archiveOf(headParts(evil('files/'))), /names no file/],
    ['F11: a name that begins at the root', () => archiveOf(headParts(evil('/etc/x'))), /nothing that an export has/],
    [
      'F3: a segment of 256 bytes',
      () => archiveOf(headParts(evil(`files/${'x'.repeat(256)}`))),
      /longer than 255 bytes/,
    ],
    [
      'F10: a device',
      () => archiveOf(headParts({ header: { name: 'd' }, raw: rawHeader({ name: 'files/d', flag: '3' }) })),
      /of type "3"/,
    ],
    [
      'F10: a FIFO',
      () => archiveOf(headParts({ header: { name: 'd' }, raw: rawHeader({ name: 'files/d', flag: '6' }) })),
      /of type "6"/,
    ],
    [
      'F10: a hard link',
      () =>
        archiveOf(
          headParts({ header: { name: 'd' }, raw: rawHeader({ name: 'files/d', flag: '1', link: '/etc/passwd' }) }),
        ),
      /of type "1"/,
    ],
    [
      'a long name as GNU tar writes it',
      () => archiveOf(headParts({ header: { name: 'd' }, raw: rawHeader({ name: '././@LongLink', flag: 'L' }) })),
      /of type "L"/,
    ],
    [
      'a global header',
      () => archiveOf(headParts({ header: { name: 'd' }, raw: rawHeader({ name: 'x', flag: 'g', size: 512 }) })),
      /of type "g"/,
    ],
    [
      'F2: set-uid',
      () => archiveOf(headParts({ header: { name: 'files/x', mode: 0o4755 }, content: 'x' })),
      /mode 4755/,
    ],
    ['a file there twice', () => archiveOf(headParts(file('/a', '1'), file('/a', '2'))), /there twice/],
    ['files out of order', () => archiveOf(headParts(file('/b', '1'), file('/a', '2'))), /not in its place/],
    [
      'F4: a file below a link',
      () => archiveOf(headParts(link('/out', '/etc'), file('/out/passwd', 'x'))),
      /below "\/out", which is no folder/,
    ],
    [
      'F12: a file below a file, others between',
      () => archiveOf(headParts(file('/a', '1'), file('/a!', '2'), file('/a/b', '3'))),
      /below "\/a"/,
    ],
    ['a link to nothing', () => archiveOf(headParts(link('/l', ''))), /target/],
    [
      'a content that is not what its name says',
      () => archiveOf(wholeParts().map((p) => (p.header.name.startsWith('blobs/') ? { ...p, content: 'forged' } : p))),
      /has the hash/,
    ],
    ['a file without a manifest', () => archiveOf(headParts(file('/a', '1')), { manifest: false }), /cut/],
    ['no end', () => archiveOf(headParts(file('/a', '1')), { end: false }), /cut/],
    ['something after its end', () => Buffer.concat([archiveOf(headParts()), Buffer.alloc(BLOCK)]), /after its end/],
    [
      'a member after the manifest',
      () =>
        archiveOf([...headParts(), { header: { name: 'manifest.sha256' }, content: '' }, evil('files/x')], {
          manifest: false,
        }),
      /manifest|not in its place/,
    ],
    ['a foreign member', () => archiveOf(headParts(evil('readme.md'))), /nothing that an export has/],
    ['no header first', () => archiveOf([file('/a', 'x')]), /does not begin with/],
    [
      'history in an export of the head',
      () => archiveOf([headerPart({ headOnly: true }), lines('history/000001.jsonl'), lines('kv.jsonl')]),
      /nothing that an export has/,
    ],
    ['a newer format', () => archiveOf([headerPart({ format: 2 })]), /format is 2, this release knows 1/],
    [
      'a page that is missing',
      () =>
        archiveOf(
          wholeParts().map((p) =>
            p.header.name === 'events/000001.jsonl' ? { ...p, header: { name: 'events/000002.jsonl' } } : p,
          ),
        ),
      /not the next page/,
    ],
    ['turns that are missing', () => archiveOf(without('turns.jsonl')), /turns\.jsonl is missing/],
    ['values that are missing', () => archiveOf(without('kv.jsonl')), /kv\.jsonl is missing/],
    ['requests of a later release', () => archiveOf(instead(lines('requests.jsonl', { id: 'x' }))), /has requests/],
    ['a line that is not JSON', () => archiveOf(instead(lines('kv.jsonl', '{'))), /not JSON/],
    [
      'a line with a field that this release does not know',
      () => archiveOf(instead(lines('sessions.jsonl', { name: 'main', createdAt: AT, x: 1 }))),
      /not as this release knows/,
    ],
    [
      'a line that ends nowhere',
      () => archiveOf(instead({ header: { name: 'kv.jsonl' }, content: '{}' })),
      /middle of a line/,
    ],
    [
      'a NUL in a payload',
      () =>
        archiveOf(instead(lines('events/000001.jsonl', `{"seq":1,"type":"x","v":1,"at":"${AT}","payload":"\\u0000"}`))),
      /NUL/,
    ],
    [
      'a payload a million deep',
      () => archiveOf(instead(lines('events/000001.jsonl', `{"payload":${'['.repeat(1_000_000)}`))),
      /deep/,
    ],
    [
      'a line of 9 MB',
      () => archiveOf(instead(lines('events/000001.jsonl', ' '.repeat(9_000_000)))),
      /more than 8388608 bytes/,
    ],
    [
      'a line that is not UTF-8',
      () => archiveOf(instead({ header: { name: 'kv.jsonl' }, content: Buffer.from([0x22, 0xff, 0x22, 0x0a]) })),
      /not UTF-8/,
    ],
    [
      'a date that there is none of',
      () => archiveOf(instead(lines('sessions.jsonl', { name: 'main', createdAt: '2026-02-31T00:00:00.000000Z' }))),
      /not as this release knows/,
    ],
    [
      'F11: a path of the history that leads out',
      () =>
        archiveOf(
          instead(
            lines('history/000001.jsonl', { version: 1, path: '/../x', kind: 'deleted', executable: false, size: 0 }),
          ),
        ),
      /has a \.\. segment/,
    ],
    [
      'a version after the last',
      () =>
        archiveOf(
          instead(
            lines('history/000001.jsonl', { version: 3, path: '/x', kind: 'deleted', executable: false, size: 0 }),
          ),
        ),
      /not in its place/,
    ],
    [
      'an event after the last',
      () => archiveOf(instead(lines('events/000001.jsonl', { seq: 4, type: 'x', v: 1, at: AT, payload: 1 }))),
      /not in its place/,
    ],
    [
      'more values than a workspace may have',
      () =>
        archiveOf(
          instead(
            lines('kv.jsonl', ...Array.from({ length: KV_LIMITS.keys + 1 }, (_, i) => valueLine(`k${10_000 + i}`))),
          ),
        ),
      /more than 10000 values/,
    ],
    ['a key that no workspace has', () => archiveOf(instead(lines('kv.jsonl', valueLine('é'.repeat(300))))), /the key/],
    [
      'a value that does not have its hash',
      () => archiveOf(instead(lines('kv.jsonl', { key: 'k', sha256: '0'.repeat(64), updatedAt: AT, value: 'dg==' }))),
      /does not have its hash/,
    ],
  ])('%s is refused', async ([, bytes, says]) => {
    const { reason, message } = await refusal(bytes());
    expect(['BadRequest', 'PathRefused']).toContain(reason);
    expect(message).toMatch(says);
  });

  test('text that only looks like a NUL is taken', async () => {
    await read(
      archiveOf(instead(lines('events/000001.jsonl', { seq: 1, type: 'x', v: 1, at: AT, payload: 'a \\u0000 b' }))),
    );
  });

  test('whatever size a header claims, no more is held than came', async () => {
    const claims = [
      Buffer.concat([rawHeader({ name: 'PaxHeader', flag: 'x', size: 0o77777777777 }), Buffer.alloc(BLOCK)]),
      rawHeader({ name: 'files/a', flag: '0', size: 0o77777777777 }),
      tarHeader({ name: 'files/a', size: 2 ** 52, mode: 0o644 }),
    ];
    const before = process.memoryUsage().rss;
    for (const raw of claims) {
      const { reason } = await refusal(
        archiveOf(headParts({ header: { name: 'x' }, raw }), { manifest: false, end: false }),
      );
      expect(['BadRequest', 'FileTooLarge']).toContain(reason);
    }
    expect(process.memoryUsage().rss - before).toBeLessThan(64 << 20);
  });

  test('S5: a million tiny files end where twice the limit is passed, in bounded memory', async () => {
    let sent = 0;
    async function* million(): AsyncIterable<Buffer> {
      yield archiveOf([headerPart({ headOnly: true })], { manifest: false, end: false });
      for (; sent < 1_000_000; sent += 1)
        yield tarHeader({ name: `files/${String(sent).padStart(7, '0')}`, size: 0, mode: 0o644 });
    }
    expect(await refusal(million())).toMatchObject({
      reason: 'TooManyFiles',
      message: expect.stringContaining('maxFiles is 1000') as string,
    });
    expect(sent).toBeLessThan(3_100);
  });

  test('S5: a million lines are passed on and not held', { timeout: 120_000 }, async () => {
    const count = 1_000_000;
    const lineAt = (i: number) =>
      Buffer.from(`${JSON.stringify({ seq: count + i, type: 'x', v: 1, at: AT, payload: 1 })}\n`);
    let most = 0;
    async function* million(): AsyncIterable<Buffer> {
      yield archiveOf([headerPart({ seq: 2 * count })], { manifest: false, end: false });
      yield tarHeader({ name: 'events/000001.jsonl', size: lineAt(0).length * count, mode: 0o644 });
      for (let i = 0; i < count; i += 1_000) {
        yield Buffer.concat(Array.from({ length: 1_000 }, (_, k) => lineAt(i + k)));
        most = Math.max(most, process.memoryUsage().heapUsed);
      }
    }
    let passed = 0;
    const { store } = recorder();
    const counting = {
      ...store,
      stageImport: async (...[, , , rows]: Parameters<ImportStore['stageImport']>) => void (passed += rows.length),
    };
    const before = process.memoryUsage().heapUsed;
    await expect(importWorkspace(counting as unknown as typeof store, owner, million())).rejects.toThrow(/cut/);
    expect(passed).toBeGreaterThan(count - 1_001);
    expect(most - before).toBeLessThan(192 << 20);
  });
});

describe('guards', () => {
  const big = file('/big', 'b'.repeat(1_100_000));
  test('of the head alone what is refused is left out and told, and the rest is there', async () => {
    const { store, staged } = recorder();
    const result = await importWorkspace(
      store,
      owner,
      inPieces(archiveOf(headParts(file('/a', 'x'), big, file('/c', 'y')))),
    );
    expect(result).toMatchObject({ refusedCount: 1, refused: [{ path: '/big', reason: 'FileTooLarge' }] });
    expect(staged.map(([kind, row]) => [kind, (row as { path: string }).path])).toEqual([
      ['file', '/a'],
      ['file', '/c'],
    ]);
  });

  test('too many files, too many bytes: what is within the limits is taken', async () => {
    const many = Array.from({ length: 1_200 }, (_, i) => file(`/${String(i).padStart(5, '0')}`, ''));
    expect(await read(archiveOf(headParts(...many)))).toMatchObject({ refusedCount: 200, refused: { length: 100 } });
    const large = Array.from({ length: 10 }, (_, i) => file(`/${i}`, 'l'.repeat(1_000_000)));
    expect(await read(archiveOf(headParts(...large)))).toMatchObject({
      refusedCount: 2,
      refused: [{ reason: 'WorkspaceFull' }, {}],
    });
  });

  test('with a history nothing is taken where anything is refused; a dry run lists it', async () => {
    const parts = wholeParts();
    parts.splice(2, 0, big);
    expect(await refusal(archiveOf(parts))).toMatchObject({
      reason: 'FileTooLarge',
      message: expect.stringContaining('the head alone') as string,
    });
    expect(await read(archiveOf(parts), { dryRun: true })).toMatchObject({
      refusedCount: 1,
      refused: [{ path: '/big' }],
    });
    expect(await read(archiveOf(parts), { headOnly: true })).toMatchObject({ refusedCount: 1, versions: 1, turns: 0 });
  });

  test('our own names in the root are refused', async () => {
    expect(await read(archiveOf(headParts(file('/.lathe-tmp-1', 'x'))))).toMatchObject({
      refused: [{ reason: 'PathRefused' }],
    });
  });
});
