/** What trees can be made of, and what a volume can turn out to be: in and back, on real processes and a real Postgres. */
import { createHash } from 'node:crypto';
import { execFileSync } from 'node:child_process';
import { appendFileSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { EntryKind, type Entry } from '../../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { EffectiveSpec } from '../../../crds/types.ts';
import type { OwnedWorkspace } from '../../../operator/sandboxes/ownership.ts';
import { EFFECTIVE } from '../store/fixture.ts';
import { treeOfHead, treeOnDisk } from './tree.ts';
import { useSandboxes } from './world.ts';

const world = useSandboxes();
const rootOf = (owned: OwnedWorkspace) => join(world.folder, owned.workspace.id, 'workspace');
const sandboxOf = (owned: OwnedWorkspace) => {
  const sandbox = world.provider.sandboxes.get(owned.workspace.id);
  if (sandbox === undefined) throw new Error('no sandbox');
  return sandbox;
};

async function own(files: Partial<EffectiveSpec['files']> = {}): Promise<OwnedWorkspace> {
  return await world.own(await world.workspace({ effective: { files: { ...EFFECTIVE.files, ...files } } }));
}

/** As a node that was replaced: the container is another one, and the volume is what `change` made of it. */
async function onAnotherVolume(owned: OwnedWorkspace, change: (root: string) => void): Promise<void> {
  sandboxOf(owned).guest.kill('SIGKILL');
  const meeting = world.replica.meeting(owned.workspace.id);
  await expect.poll(() => meeting.session?.guestConnected() ?? false, { timeout: 10_000 }).toBe(false);
  change(rootOf(owned));
  world.provider.restart(owned.workspace.id, 'guest');
}

const emptied = (root: string) => void execFileSync('find', [root, '-mindepth', '1', '-delete']);

describe('in and back', () => {
  test('F1, F2, F3: links of all kinds, modes and odd names come back from an empty volume as they were', async () => {
    const owned = await own();
    const made = await world.run(
      owned,
      [
        'mkdir -p d/e empty "sp ace"',
        'ln -s d to-folder; ln -s d/f to-file; ln -s nowhere dangling; ln -s /etc/passwd absolute; ln -s loop loop; ln -s .. d/up',
        'echo x > d/f; echo "#!/bin/sh" > run; chmod 4751 run; chmod 600 d/f',
        `for n in "sp ace/x y" "quo'te\\"" $'new\\nline' "-rf" "📄" $'e\\u0301' $'\\u00e9' Case case "${'n'.repeat(255)}"; do echo "$n" > "./$n"; done`,
        `: > $'bro\\xffken'; mkdir $'bro\\xfeken-too'`,
      ].join('\n'),
    );
    expect(made.refused.map((r) => r.path).toSorted()).toEqual([
      expect.stringContaining('bro'),
      expect.stringContaining('bro'),
    ]);
    const head = await treeOfHead(world.store, owned.workspace.id);
    await onAnotherVolume(owned, emptied);
    expect(await world.run(owned, 'true')).toMatchObject({ files: { created: 0, changed: 0, deleted: 0 } });
    expect(treeOnDisk(rootOf(owned))).toEqual(head);
    expect(Object.keys(head)).toContain(`/${'n'.repeat(255)}`);
    expect(head['/absolute']).toBe('symlink /etc/passwd');
    expect(statSync(join(rootOf(owned), 'run')).mode & 0o7777).toBe(0o755);
    expect(statSync(join(rootOf(owned), 'd/f')).mode & 0o7777).toBe(0o644);
  });

  test('F10: what is no file is reported once and skipped; hard links are two files, a sparse one is as long as it is', async () => {
    const owned = await own();
    const made = await world.run(
      owned,
      'mkfifo pipe; mknod device c 1 3; python3 -c "import socket; socket.socket(socket.AF_UNIX).bind(\'sock\')" || true; echo one > a; ln a b; truncate -s 700000 sparse',
    );
    const skipped = made.refused.map((r) => JSON.parse(r.path) as string).toSorted();
    expect(skipped.filter((p) => p !== '/sock')).toEqual(['/device', '/pipe']);
    expect(made.files.paths.toSorted()).toEqual(['/a', '/b', '/sparse']);
    // One file is changed, and its twin with it.
    const changed = await world.run(owned, 'echo two >> b');
    expect(changed).toMatchObject({ files: { changed: 2 }, refused: [] });
    await onAnotherVolume(owned, emptied);
    expect((await world.run(owned, 'cat a b; stat -c %h a; wc -c < sparse')).head).toBe(
      'one\ntwo\none\ntwo\n1\n700000\n',
    );
  });

  test('F10: a file that is appended to while it is collected is never committed torn', async () => {
    const owned = await own();
    await world.run(owned, 'echo start > log');
    const path = join(rootOf(owned), 'log');
    const lines: string[] = ['start\n'];
    const writer = setInterval(() => {
      const line = `line ${lines.length} ${'x'.repeat(40_000)}\n`;
      lines.push(line);
      appendFileSync(path, line);
    }, 1);
    try {
      for (let i = 0; i < 8 && lines.join('').length < 900_000; i += 1) {
        const result = await world.run(owned, 'sleep 0.02');
        const head = (await world.store.entriesAt(owned.workspace.id, ['/log'], owned.head)).get('/log');
        const stored: Buffer[] = [];
        for await (const piece of world.store.readBlob(owned.workspace.tenant, head?.sha256 ?? Buffer.alloc(0)))
          stored.push(piece);
        // Whole lines, all of them: what it was at some moment.
        expect(lines.join('').startsWith(Buffer.concat(stored).toString())).toBe(true);
        for (const { path: refused } of result.refused) expect(refused).toContain('/log');
      }
    } finally {
      clearInterval(writer);
    }
  });

  test('F12: a file where a folder is needed, and the other way round', async () => {
    const owned = await own();
    await world.run(owned, 'echo file > a; mkdir b; echo in > b/c');
    const swapped = await world.run(owned, 'rm a; mkdir a; echo in > a/x; rm -r b; echo file > b');
    expect(swapped.refused).toEqual([]);
    const head = await treeOfHead(world.store, owned.workspace.id);
    expect(Object.keys(head).toSorted()).toEqual(['/a/x', '/b']);
    await onAnotherVolume(owned, (root) => {
      rmSync(join(root, 'a'), { recursive: true });
      writeFileSync(join(root, 'a'), 'a file again');
      rmSync(join(root, 'b'));
    });
    expect((await world.run(owned, 'cat a/x b')).head).toBe('in\nfile\n');
  });

  test('F9: a change within a tick of the clock that keeps the size is seen', async () => {
    const owned = await own();
    for (let i = 0; i < 10; i += 1) {
      const result = await world.run(owned, `printf ${i} > f; touch -d @1700000000 f`);
      expect(result.files).toMatchObject(i === 0 ? { created: 1 } : { changed: 1 });
    }
  });

  test('a folder that a command made read-only is written into all the same', async () => {
    const owned = await own({ writable: ['/ok/**'] });
    const result = await world.run(owned, 'mkdir -p ro ok; echo x > ro/refused; chmod 0555 ro; echo y > ok/y');
    expect(result.refused).toMatchObject([{ path: '/ro/refused', reason: 'ScopeRefused' }]);
    expect((await world.run(owned, 'ls')).head).toBe('ok\n');
  });
});

describe('F5: more than is allowed', () => {
  test('a huge file is refused by its size, unread', async () => {
    const owned = await own();
    const result = await world.run(owned, 'truncate -s 3G huge; truncate -s 200G larger; echo small > small');
    expect(result.refused).toMatchObject([
      { path: '/huge', reason: 'FileTooLarge', message: expect.stringMatching(/3221225472 bytes.*1Mi/) },
      { path: '/larger', reason: 'FileTooLarge' },
    ]);
    expect(result.files.paths).toEqual(['/small']);
    expect(result.collectMs).toBeLessThan(1_000);
    expect((await world.run(owned, 'ls')).head).toBe('small\n');
  });

  test('too many files: those that fit are committed, the sandbox is put back', async () => {
    const owned = await own({ maxFiles: 40 });
    const result = await world.run(owned, 'for i in $(seq 100 159); do echo $i > f$i; done');
    expect(result.files.created).toBe(40);
    expect(result.refused).toHaveLength(20);
    expect(result.refused[0]).toMatchObject({ reason: 'TooManyFiles', message: expect.stringMatching(/41 files.*40/) });
    expect((await world.run(owned, 'ls | wc -l')).head.trim()).toBe('40');
  });

  test('more entries than can be listed, and a nest of 3,000: refused as a whole, put back, in bounded memory', async () => {
    const owned = await own({ maxFiles: 100 });
    await world.run(owned, 'echo kept > kept');
    const many = await world.run(owned, 'mkdir many; cd many; seq 12000 | xargs touch');
    expect(many.refused).toMatchObject([
      { path: '/', message: expect.stringMatching(/more than 10400 entries.*\/many/) },
    ]);
    const deep = await world.run(
      owned,
      "ls; python3 -c \"import os\nfor i in range(3000): os.mkdir('d'); os.chdir('d')\"",
    );
    expect(deep.head).toBe('kept\n');
    expect(deep.refused).toMatchObject([{ path: '/', message: expect.stringContaining('nested deeper than 512') }]);
    expect((await world.run(owned, 'ls')).head).toBe('kept\n');
  });
});

describe('F8: a volume that is not ours is never read as a wish', () => {
  test('empty: everything is there again, and nothing was deleted', async () => {
    const owned = await own();
    await world.run(owned, 'for i in $(seq 30); do echo $i > f$i; done');
    const { head } = owned;
    await onAnotherVolume(owned, emptied);
    expect(await world.run(owned, 'ls | wc -l')).toMatchObject({ head: '30\n', files: { deleted: 0 } });
    expect(owned.head).toBe(head);
  });

  test('of somebody else: what is there goes, and none of it is committed', async () => {
    const owned = await own();
    await world.run(owned, 'echo ours > a');
    await onAnotherVolume(owned, (root) => {
      emptied(root);
      writeFileSync(join(root, 'a'), 'theirs');
      writeFileSync(join(root, 'secret'), 'theirs');
    });
    expect(await world.run(owned, 'ls; cat a')).toMatchObject({ head: 'a\nours\n', files: { created: 0, changed: 0 } });
  });
});

describe('F6: a transfer that is cut', () => {
  test('a large file on its way out goes on from where it was, through another broker', async () => {
    const owned = await own({ maxFileSize: '64Mi', maxTotalSize: '128Mi' });
    await world.run(owned, 'true');
    const meeting = world.replica.meeting(owned.workspace.id);
    const content = meeting.content.bind(meeting);
    let pieces = 0;
    meeting.content = async (piece, signal) => {
      pieces += 1;
      if (pieces === 20) {
        sandboxOf(owned).broker.kill('SIGKILL');
        world.provider.restart(owned.workspace.id, 'broker');
      }
      await content(piece, signal);
    };
    const result = await world.run(owned, 'head -c 30000000 /dev/urandom > big; sha256sum < big');
    expect(result).toMatchObject({ state: 'done', files: { created: 1 }, refused: [] });
    const stored = createHash('sha256');
    const entry = (await world.store.entriesAt(owned.workspace.id, ['/big'], owned.head)).get('/big');
    for await (const piece of world.store.readBlob(owned.workspace.tenant, entry?.sha256 ?? Buffer.alloc(0)))
      stored.update(piece);
    expect(result.head).toContain(stored.digest('hex'));
    // 115 pieces are the file; what was on its way when it was cut came twice.
    expect(pieces).toBeGreaterThanOrEqual(115);
    expect(pieces).toBeLessThan(170);
  });

  test('a large file on its way in: no half of it is ever seen, and only the rest of it is sent again', async () => {
    const owned = await own({ maxFileSize: '64Mi', maxTotalSize: '128Mi' });
    const made = await world.run(owned, 'head -c 30000000 /dev/urandom > big; sha256sum big > sum; cat sum');
    await onAnotherVolume(owned, emptied);
    const meeting = world.replica.meeting(owned.workspace.id);
    await expect.poll(() => meeting.session?.guestConnected() ?? false, { timeout: 10_000 }).toBe(true);
    let sent: number[] = [];
    let cut = false;
    const hook = () => {
      const { session } = meeting;
      if (session === undefined) return;
      const send = session.sendContent;
      Object.assign(session, {
        sendContent: async (piece: Parameters<typeof send>[0]) => {
          sent.push(piece.data.length);
          if (sent.length === 40 && !cut) {
            cut = true;
            sandboxOf(owned).broker.kill('SIGKILL');
            world.provider.restart(owned.workspace.id, 'broker');
          }
          await send(piece);
        },
      });
    };
    hook();
    const attach = meeting.attach.bind(meeting);
    meeting.attach = (session) => {
      attach(session);
      sent = [];
      hook();
    };
    const result = await world.run(owned, 'sha256sum -c sum; ls -A');
    expect(result.head).toBe('big: OK\nbig\nsum\n');
    expect(made.head).toContain('big');
    const bytes = sent.reduce((sum, n) => sum + n, 0);
    // To the second broker; ten were on their way through the first one.
    expect(cut).toBe(true);
    expect(bytes).toBeLessThan(27_000_000);
  });
});

test('S3: a hash that is offered without its content is asked for, and names nothing that is elsewhere', async () => {
  const owned = await own();
  const [sha256] = await world.store.putBlobs(owned.workspace.tenant, [Buffer.from('a secret of another workspace')]);
  if (sha256 === undefined) throw new Error('no hash');
  const meeting = world.replica.meeting(owned.workspace.id);
  const deliver = meeting.deliver.bind(meeting);
  const stolen: Entry = {
    path: '/stolen',
    kind: EntryKind.ENTRY_KIND_REGULAR,
    executable: false,
    size: 29n,
    sha256,
    target: '',
  };
  meeting.deliver = (news, signal) =>
    deliver(
      news.$case === 'offer' ? { ...news, value: { ...news.value, changes: [stolen, ...news.value.changes] } } : news,
      signal,
    );
  const result = await world.run(owned, 'echo good > good');
  meeting.deliver = deliver;
  expect(result.refused).toMatchObject([{ path: '/stolen', reason: 'Conflict' }]);
  expect(result.files.paths).toEqual(['/good']);
  expect(readFileSync(join(rootOf(owned), 'good'), 'utf8')).toBe('good\n');
});
