/** `Import` of the turn controller: callers come and go, the import goes on; and Postgres may die under it. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { ImportRequest, ImportResponse } from '../../../proto/gen/lathe/turns/v1/turns.ts';
import { createImports, type Imports } from '../../../operator/harness/import-service.ts';
import { importWorkspace } from '../../../operator/files/import/import.ts';
import { Ownership } from '../../../operator/sandboxes/ownership.ts';
import { newId } from '../../../operator/store/ids.ts';
import { migrate } from '../../../operator/store/migrate.ts';
import { openPostgresStore } from '../../../operator/store/postgres-store.ts';
import type { WorkspaceRow } from '../../../operator/store/rows.ts';
import { createLogger } from '../../../operator/telemetry/log.ts';
import { openControlStore } from '../../../operator/store/control-store.ts';
import { archiveOf, file, headParts, wholeParts } from '../../fakes/export-archive.ts';
import { startPostgres } from '../postgres.ts';
import { EFFECTIVE, useStore } from '../store/fixture.ts';
import { rowOf, tracesOf } from './world.ts';

const f = useStore();
const stop = new AbortController();
let ownership: Ownership;
let beating: Promise<void>;
beforeAll(async () => {
  const ready = Promise.withResolvers<void>();
  const log = createLogger('error');
  ownership = new Ownership({ store: f.store, replica: newId(), address: 'here:1', log });
  beating = ownership.run(ready.resolve, stop.signal);
  await ready.promise;
});
afterAll(async () => {
  stop.abort();
  await beating;
});

const request = (workspace: WorkspaceRow, upload: string, more: Partial<ImportRequest> = {}): ImportRequest => ({
  workspace: { namespace: workspace.namespace, name: workspace.name },
  upload,
  dryRun: false,
  headOnly: false,
  actor: 'ada',
  ...more,
});

/** Uploads that a test lets through when it likes. */
function service(bytes: Buffer): Readonly<{ imports: Imports; open: () => void; begun: () => number }> {
  const gate = Promise.withResolvers<void>();
  let begun = 0;
  const imports = createImports({
    store: {
      ...f.store,
      readUpload: async function* () {
        begun += 1;
        yield bytes.subarray(0, 1_000);
        await gate.promise;
        yield bytes.subarray(1_000);
      },
    },
    ownership,
    find: async (ref) => {
      const row = await f.store.findWorkspace(ref?.namespace ?? '', ref?.name ?? '');
      if (row === undefined) throw new Error('no workspace');
      return row;
    },
    onEvents: () => undefined,
  });
  return { imports, open: gate.resolve, begun: () => begun };
}

test('whoever waits hears how far it is; a caller that leaves does not end it, and another joins it', async () => {
  const workspace = await f.workspace();
  const { imports, open, begun } = service(archiveOf(wholeParts()));
  const gone = new AbortController();
  const heard: ImportResponse[] = [];
  const left = imports(
    request(workspace, 'u1'),
    async (response) => {
      heard.push(response);
      gone.abort(new Error('the caller is gone'));
    },
    gone.signal,
  );
  await expect(left).rejects.toThrow('the caller is gone');
  expect(heard).toMatchObject([{ message: { $case: 'progress' } }]);
  expect(await f.store.head(workspace.id)).toMatchObject({ head: 0n });
  const answers: ImportResponse[] = [];
  const joined = imports(request(workspace, 'u1'), async (r) => void answers.push(r), AbortSignal.timeout(20_000));
  open();
  await joined;
  const imported = { message: { $case: 'imported', value: { version: 2n, events: 3n, turns: 1n, values: 1n } } };
  expect(answers.at(-1)).toMatchObject(imported);
  await imports(request(workspace, 'u1'), async (r) => void answers.push(r), AbortSignal.timeout(20_000));
  expect(answers.at(-1)).toMatchObject(imported);
  expect(begun()).toBe(1);
  // What the owner knows is what is there: its next commit is the next version.
  expect(ownership.get(workspace.id)?.head).toBe(2n);
});

test('a workspace that another replica owns is not imported into here', async () => {
  const workspace = await f.workspace();
  await f.store.acquire(workspace.id, await f.replica());
  const { imports } = service(archiveOf(headParts()));
  const answers: ImportResponse[] = [];
  await imports(request(workspace, 'u2'), async (r) => void answers.push(r), AbortSignal.timeout(20_000));
  expect(answers).toMatchObject([{ message: { $case: 'redirect' } }]);
});

test('more imports than a process has room for are refused for now', async () => {
  const { imports, open } = service(archiveOf(headParts(file('/a', 'x'))));
  const rows = await Promise.all(Array.from({ length: 5 }, () => f.workspace()));
  const done = rows.map((row, i) =>
    imports(request(row, `many-${i}`), async () => undefined, AbortSignal.timeout(20_000)).then(
      () => 'imported',
      (error: { reason?: string }) => error.reason,
    ),
  );
  const first = await Promise.race(done);
  expect(first).toBe('TooManyRequests');
  open();
  expect((await Promise.all(done)).toSorted()).toEqual(['TooManyRequests', ...Array<string>(4).fill('imported')]);
});

test(
  'K12: Postgres dies under an import: it says so, the workspace is empty, and the import is begun anew',
  { timeout: 120_000 },
  async () => {
    await using postgres = await startPostgres();
    await migrate(postgres.url, { say: () => undefined }, AbortSignal.timeout(60_000));
    await using open = {
      store: openPostgresStore(postgres.url, 'test'),
      control: openControlStore(postgres.url),
      [Symbol.asyncDispose]: async () => {
        await open.store.close();
        await open.control.close();
      },
    };
    const { store, control } = open;
    const tenant = await control.upsertTenant({ namespace: 'team', namespaceUid: 'u' });
    const spec = { tenant, namespace: 'team', name: 'w', uid: newId(), generation: 1, class: 'default', spec: {} };
    const { id } = await control.upsertWorkspace({ ...spec, effective: EFFECTIVE, hasSeed: false });
    const there = { ...f, store, control };
    const replica = newId();
    await store.heartbeat({ replica, address: 'here:1' });
    const got = await store.acquire(id, replica);
    if (!('lease' in got)) throw new Error('not acquired');
    const staged = await store.beginImport(got.lease);
    await store.stageImport(got.lease, staged, 'file', [{ path: '/d', kind: 'directory', executable: false, size: 0 }]);
    await postgres.stop();
    await expect(store.stageImport(got.lease, staged, 'file', [{}])).rejects.toMatchObject({
      reason: 'StoreUnavailable',
    });
    await postgres.start();
    await store.heartbeat({ replica, address: 'here:1' });
    await expect(store.stageImport(got.lease, staged, 'file', [{}])).rejects.toMatchObject({
      name: 'TransientError',
      reason: 'Conflict',
    });
    expect(await tracesOf(there, id)).toEqual({});
    const owner = { workspace: await rowOf(there, id), lease: got.lease };
    const whole = archiveOf(wholeParts());
    expect(
      await importWorkspace(
        store,
        owner,
        (async function* () {
          yield whole;
        })(),
      ),
    ).toMatchObject({ version: 2n });
  },
);
