/** Workspaces with a past: random trees, histories, logs, turns and values, made through the store as the program makes them. */
import { createHash, randomBytes } from 'node:crypto';
import fc from 'fast-check';
import { exportRange, exportSize } from '../../../operator/files/export/export.ts';
import { pinExport, type Pin } from '../../../operator/files/export/state.ts';
import { importWorkspace, type ImportOptions, type ImportResult } from '../../../operator/files/import/import.ts';
import { newId } from '../../../operator/store/ids.ts';
import type { Change, Lease, WorkspaceRow } from '../../../operator/store/rows.ts';
import type { Fixture } from '../store/fixture.ts';

/** Each is hard to carry in its own way; some can't be there beside each other. */
const PATHS = [
  '/a',
  '/a/b',
  '/a/b/c d.txt',
  '/a!',
  '/-rf',
  '/"quoted"',
  '/new\nline',
  '/back\\slash',
  '/tab\there',
  '/é-combining-e\u0301',
  '/🦀/crab',
  `/${'x'.repeat(255)}`,
  `/deep/${'d'.repeat(200)}/${'e'.repeat(200)}`,
  '/files/lathe-export.json',
  '/manifest.sha256',
  '/run.sh',
  '/%2e%2e',
] as const;
const TARGETS = ['a', '/etc/passwd', '..', '../../x', 'z'.repeat(300), 'né', 'line\nbreak'] as const;

export type Step = Readonly<
  | { do: 'write'; writes: readonly Readonly<{ path: string; what: Write }>[]; origin: 'api' | 'restore' }
  | { do: 'run'; writes: readonly Readonly<{ path: string; what: Write }>[]; output: string; turn: boolean }
  | { do: 'log'; payloads: readonly unknown[] }
  | { do: 'value'; key: string; value: Uint8Array }
  | { do: 'turn'; phase: 'Completed' | 'Failed' | 'NeedsContinuation'; answer: string }
>;
type Write = Readonly<
  | { kind: 'regular'; content: string; executable: boolean }
  | { kind: 'symlink'; target: string }
  | { kind: 'directory' }
  | { kind: 'deleted' }
>;

const what: fc.Arbitrary<Write> = fc.oneof(
  fc.record({
    kind: fc.constant('regular' as const),
    content: fc.oneof(
      fc.string({ unit: 'binary', maxLength: 40 }),
      fc.constantFrom('', 'same', 'x'.repeat(600), 'large'.repeat(70_000)),
    ),
    executable: fc.boolean(),
  }),
  fc.record({ kind: fc.constant('symlink' as const), target: fc.constantFrom(...TARGETS) }),
  fc.record({ kind: fc.constant('directory' as const) }),
  fc.record({ kind: fc.constant('deleted' as const) }),
);
const writes = fc.uniqueArray(fc.record({ path: fc.constantFrom(...PATHS), what }), {
  selector: ({ path }) => path,
  minLength: 1,
  maxLength: 6,
});
const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({ do: fc.constant('write' as const), writes, origin: fc.constantFrom('api' as const, 'restore' as const) }),
  fc.record({
    do: fc.constant('run' as const),
    writes,
    output: fc.oneof(fc.string({ maxLength: 100 }), fc.constant('out'.repeat(9_000))),
    turn: fc.boolean(),
  }),
  fc.record({
    do: fc.constant('log' as const),
    payloads: fc.array(
      fc.oneof(fc.jsonValue(), fc.constant({ big: 'p'.repeat(9_000) }), fc.constant({ text: 'a \\u0000 b' })),
      {
        minLength: 1,
        maxLength: 3,
      },
    ),
  }),
  fc.record({
    do: fc.constant('value' as const),
    key: fc.constantFrom('k', 'a/b', 'ключ', 'Z'),
    value: fc.oneof(fc.uint8Array({ maxLength: 50 }), fc.constant(new Uint8Array(256 * 1024))),
  }),
  fc.record({
    do: fc.constant('turn' as const),
    phase: fc.constantFrom('Completed' as const, 'Failed' as const, 'NeedsContinuation' as const),
    answer: fc.string({ maxLength: 50 }),
  }),
);
export const steps = fc.array(step, { maxLength: 10 });

export type Owned = Readonly<{ workspace: WorkspaceRow; lease: Lease; replica: string }>;

export async function owned(f: Fixture, options?: Parameters<Fixture['workspace']>[0]): Promise<Owned> {
  const workspace = await f.workspace(options);
  const replica = await f.replica();
  const got = await f.store.acquire(workspace.id, replica);
  if (!('lease' in got)) throw new Error('a workspace of its own could not be acquired');
  return { workspace, lease: got.lease, replica };
}

/** A workspace in which all of this happened. */
export async function lived(
  f: Fixture,
  past: readonly Step[],
  options?: Parameters<Fixture['workspace']>[0],
): Promise<Owned> {
  const own = await owned(f, options);
  const { workspace, lease } = own;
  const tree = new Map<string, bigint>();
  const changesOf = async (list: Extract<Step, { do: 'write' }>['writes']): Promise<Change[]> => {
    const changes = new Map<string, Change>();
    const remove = (path: string) => {
      const base = tree.get(path);
      if (base !== undefined) changes.set(path, { path, op: 'delete', base });
      else changes.delete(path);
    };
    for (const { path, what: w } of list) {
      const base = tree.get(path) ?? 0n;
      if (w.kind === 'deleted') {
        remove(path);
        continue;
      }
      // What is above it is no file then, what is below it goes.
      for (const other of new Set([...tree.keys(), ...changes.keys()]))
        if (other.startsWith(`${path}/`) || path.startsWith(`${other}/`)) remove(other);
      if (w.kind === 'directory')
        changes.set(path, { path, op: 'put', kind: 'directory', executable: false, size: 0, base });
      else if (w.kind === 'symlink') {
        const size = Buffer.byteLength(w.target);
        changes.set(path, { path, op: 'put', kind: 'symlink', executable: false, size, target: w.target, base });
      } else {
        const content = Buffer.from(w.content);
        const [sha256] = await f.store.putBlobs(workspace.tenant, [content]);
        if (sha256 === undefined) throw new Error('no hash');
        changes.set(path, {
          path,
          op: 'put',
          kind: 'regular',
          executable: w.executable,
          size: content.length,
          sha256,
          base,
        });
      }
    }
    return [...changes.values()];
  };
  const moved = (changes: readonly Change[], head: bigint) => {
    for (const { path, op } of changes) {
      if (op === 'delete') tree.delete(path);
      else tree.set(path, head);
    }
  };
  let sandbox: string | undefined;
  for (const s of past) {
    switch (s.do) {
      case 'write': {
        const changes = await changesOf(s.writes);
        const payload = { origin: s.origin, created: changes.length };
        const { head } = await f.store.commit(lease, {
          changes,
          origin: s.origin,
          events: [{ type: 'files.committed', v: 1, actor: 'ada', payload }],
        });
        moved(changes, head);
        break;
      }
      case 'run': {
        sandbox ??= (await f.store.demandSandbox(workspace.id)).id;
        const id = newId();
        const turn = s.turn ? await f.turn(workspace, { command: 'run' }) : undefined;
        const of = { session: 'main', execution: id, ...(turn === undefined ? {} : { turn }) };
        await f.store.dispatch(
          lease,
          {
            id,
            command: 'run',
            timeoutMs: 1_000,
            sandbox,
            boot: 'boot',
            session: 'main',
            ...(turn === undefined ? {} : { turn }),
          },
          [{ ...of, type: 'execution.dispatched', v: 1, payload: { command: 'run' } }],
        );
        const [outputSha256] = await f.store.putBlobs(workspace.tenant, [Buffer.from(s.output)]);
        const changes = await changesOf(s.writes);
        const { head } = await f.store.commit(lease, {
          execution: {
            id,
            sandbox,
            boot: 'boot',
            state: 'done',
            result: { exitCode: 0, n: 1.5 },
            ...(outputSha256 === undefined ? {} : { outputSha256 }),
          },
          changes,
          events: [{ ...of, type: 'execution.done', v: 1, payload: { exitCode: 0 } }],
          ...(turn === undefined
            ? {}
            : {
                turn: {
                  id: turn,
                  phase: 'Completed',
                  exitCode: 0,
                  output: s.output.slice(-50),
                  started: true,
                  finished: true,
                },
              }),
        });
        moved(changes, head);
        break;
      }
      case 'log':
        await f.store.commit(lease, {
          changes: [],
          events: s.payloads.map((payload) => ({ type: 'noted', v: 1, session: 'other', payload })),
        });
        break;
      case 'value':
        await f.store.writeValue(workspace, s.key, Buffer.from(s.value), {});
        break;
      case 'turn': {
        const turn = await f.turn(workspace, { message: 'do it', session: 'other' });
        await f.store.commit(lease, {
          changes: [],
          events: [
            {
              type: 'turn.ended',
              v: 1,
              session: 'other',
              turn,
              payload: { phase: s.phase, reason: 'r', message: s.answer },
            },
          ],
          turn: {
            id: turn,
            phase: s.phase,
            answer: s.answer,
            reason: 'r',
            steps: 3,
            usage: { inputTokens: 1, outputTokens: 2, cacheReadTokens: 3, cacheCreationTokens: 4 },
            started: true,
            finished: true,
          },
        });
      }
    }
  }
  return { ...own, workspace: await rowOf(f, workspace.id) };
}

export async function rowOf(f: Fixture, id: string): Promise<WorkspaceRow> {
  const row = await f.store.getWorkspace(id);
  if (row === undefined) throw new Error('the workspace is not there');
  return row;
}

export async function exported(
  f: Fixture,
  workspace: WorkspaceRow,
  options: Parameters<typeof pinExport>[2] = { headOnly: false },
): Promise<{ pin: Pin; bytes: Buffer }> {
  const pin = await pinExport(f.store, workspace, options);
  const source = { store: f.store, workspace, pin };
  const bytes = await whole(exportRange(source, 0, Number.MAX_SAFE_INTEGER));
  if (bytes.length !== (await exportSize(source))) throw new Error('it is not as long as it was planned');
  return { pin, bytes };
}

export async function whole(pieces: AsyncIterable<Buffer>): Promise<Buffer> {
  const all: Buffer[] = [];
  for await (const piece of pieces) all.push(piece);
  return Buffer.concat(all);
}

export async function* inPieces(bytes: Buffer, size = 100_000): AsyncIterable<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

export async function imported(f: Fixture, into: Owned, bytes: Buffer, options?: ImportOptions): Promise<ImportResult> {
  return await importWorkspace(f.store, into, inPieces(bytes), options);
}

/** The tree at a version as anybody reads it; not by what makes exports. */
export async function treeOf(f: Fixture, workspace: string, version?: bigint): Promise<unknown[]> {
  const all: unknown[] = [];
  for await (const page of f.store.tree(workspace, version))
    for (const { path, kind, executable, sha256, target, version: v } of page)
      all.push([path, kind, executable, sha256?.toString('hex'), target, v]);
  return all;
}

/** All that can be seen of a workspace in the tables. Empty: nothing was ever in it. */
export async function tracesOf(f: Fixture, workspace: string): Promise<Record<string, number>> {
  const tables = [
    'file',
    'file_version',
    'version_info',
    'event',
    'session',
    'turn',
    'execution',
    'kv',
    'imported_id',
    'import',
    'import_row',
  ];
  const traces: Record<string, number> = {};
  for (const table of tables) {
    const [row] = await f.store.database.query<{ n: number }>(
      `count-${table}`,
      `SELECT count(*)::int AS n FROM ${table} WHERE workspace = $1`,
      [workspace],
    );
    if (row !== undefined && row.n > 0) traces[table] = row.n;
  }
  const { head, last_seq } = await rowOf(f, workspace);
  if (head > 0n) traces['head'] = Number(head);
  if (last_seq > 0n) traces['seq'] = Number(last_seq);
  return traces;
}

export const sha256 = (bytes: Buffer | string) => createHash('sha256').update(bytes).digest('hex');
export const unique = () => randomBytes(4).toString('hex');
