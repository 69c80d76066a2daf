/**
 * What a command costs that changed nothing, and one that changed one file, in a tree of 10,000: the guest's own tree with
 * the index that it keeps between commands, against `git status` as a process in an equal tree. Plain processes, no cluster.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { Contents } from '../agent-runtime/guest/contents.ts';
import { Tree } from '../agent-runtime/guest/tree.ts';
import { DEFAULTS } from '../crds/defaults.ts';
import { EntryKind, type Entry } from '../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { LocalBench } from './bench.ts';
import { measure, type Side } from './measure.ts';

const FILES = 10_000;
const PER_FOLDER = 50;
const COLLECT = { ignored: [...DEFAULTS.files.ignored], maxEntries: 500_000, maxFileBytes: 64n << 20n };
const run = promisify(execFile);

const pathOf = (i: number) => `/src/part-${Math.floor(i / PER_FOLDER)}/file-${i}.txt`;
const contentOf = (i: number, edit = 0) => `file ${i}, edit ${edit}\n${'a line of it\n'.repeat(i % 80)}`;

export const collectBench: LocalBench = async ({ samples = 60, onProgress }, signal) => {
  const folder = mkdtempSync(join(tmpdir(), 'lathe-bench-collect-'));
  try {
    const ours = join(folder, 'ours');
    const theirs = join(folder, 'theirs');
    mkdirSync(ours);
    const guest = await guestOf(ours);
    for (let i = 0; i < FILES; i += 1) write(theirs, i);
    const git = (...args: string[]) =>
      run('git', ['-c', 'user.name=bench', '-c', 'user.email=bench@localhost', ...args], { cwd: theirs, signal });
    await git('init', '--quiet');
    await git('add', '.');
    await git('commit', '--quiet', '--message', 'all');
    const status = async (changes: number) => {
      const { stdout } = await git('status', '--porcelain');
      if (stdout.split('\n').length - 1 !== changes) throw new Error(`git status said: ${stdout.slice(0, 200)}`);
    };
    const sides = (changes: 0 | 1): { subject: Side; reference: Side } => ({
      subject: {
        name: 'the guest looks at its tree',
        before: async (i) => {
          guest.settle();
          guest.commandStarts();
          if (changes === 1) write(ours, edited(i), i + 1_000);
        },
        sample: async () => guest.look(changes),
      },
      reference: {
        name: 'git status',
        before: async (i) => {
          if (changes === 0) return;
          await git('commit', '--all', '--quiet', '--allow-empty', '--message', 'settled');
          write(theirs, edited(i), i + 1_000);
        },
        sample: async () => await status(changes),
      },
    });
    const part = async (changes: 0 | 1) =>
      await measure(
        {
          ...sides(changes),
          samples,
          warmUp: 5,
          settleMs: 40,
          onProgress: (done, of) => {
            if (done % 20 === 0) onProgress(`${changes} changed: ${done} of ${of} samples`);
          },
        },
        signal,
      );
    const unchanged = { part: 'unchanged', ...(await part(0)) };
    return { parts: [unchanged, { part: 'one file changed', ...(await part(1)) }] };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
};

function edited(i: number): number {
  return Math.abs(i * 37 + 11) % FILES;
}

function write(root: string, i: number, edit = 0): void {
  const path = join(root, pathOf(i));
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, contentOf(i, edit));
}

/** The guest's tree as it is after a hydrate, and what happens to it around each command. */
async function guestOf(root: string) {
  const tree = new Tree(root, new Contents(() => undefined));
  const page = { fromVersion: 0n, toVersion: 1n, full: true, last: true, ignored: COLLECT.ignored };
  const entries = Array.from({ length: FILES }, (_, i): Entry => {
    const inline = Buffer.from(contentOf(i));
    const sha256 = createHash('sha256').update(inline).digest();
    const size = BigInt(inline.length);
    return { path: pathOf(i), kind: EntryKind.ENTRY_KIND_REGULAR, executable: false, size, sha256, target: '', inline };
  });
  const synced = await tree.sync({ ...page, entries });
  if (synced?.error !== '') throw new Error(`the tree could not be made: ${synced?.error}`);
  let version = 1n;
  return {
    commandStarts: () => tree.commandStarts(),
    look: (changes: number) => {
      const { pages } = tree.offer('bench', COLLECT);
      const found = pages.flatMap((one) => one.changes).length;
      if (found !== changes) throw new Error(`the guest found ${found} changes, there are ${changes}`);
    },
    settle: () =>
      void tree
        .settle({ execution: 'bench', version: (version += 1n), putBack: [], last: true })
        .catch(() => undefined),
  };
}
