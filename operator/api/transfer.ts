/** `export` and `import`: a whole workspace as one file, in parts. */
import { API_VERSION, PART_BYTES, type ImportResult } from '../../proto/live/types.ts';
import { PermanentError } from '../errors.ts';
import { exportRange } from '../files/export.ts';
import { readExport } from '../files/import.ts';
import { answerJson, flagOf, HEADERS, numberOf, versionOf, type Call } from './call.ts';
import { refusalOf } from './kv.ts';
import { beginImport, findUpload, putUpload } from './uploads.ts';
import { change, write } from './writes.ts';

const IMPORT_BYTES = 16 * 1024 * 1024;
/** Versions are brought in until then; the caller asks again and it goes on. The API server ends a request at 60 s. */
const BUDGET_MS = 25_000;

/** At most 8 MiB from `offset` on; the first answer says which version and log it is of, and how long it is. */
export async function getExport(call: Call): Promise<void> {
  const { store, workspace, query, response, signal } = call;
  const version = versionOf(call);
  const seq = BigInt(numberOf(query, 'seq') ?? Number(workspace.last_seq));
  const offset = numberOf(query, 'offset') ?? 0;
  const options = { version, seq, headOnly: flagOf(query, 'headOnly') ?? false };
  await call.hold(PART_BYTES);
  const { size, bytes } = await exportRange({ store, workspace, options }, offset, PART_BYTES, signal);
  if (offset > size) throw new PermanentError('RangeNotSatisfiable', `this export has ${size} bytes`);
  response
    .writeHead(200, {
      'content-type': 'application/x-tar',
      'content-length': bytes.length,
      [HEADERS.version]: String(version),
      [HEADERS.seq]: String(seq),
      [HEADERS.size]: String(size),
    })
    .end(bytes);
}

export async function putImport(call: Call): Promise<void> {
  await putUpload(call);
}

/** `uploads=true` begins; `upload=ID` takes what was uploaded, and is asked again until it says that it is complete. */
export async function postImport(call: Call): Promise<void> {
  if (flagOf(call.query, 'uploads') === true) return await beginImport(call);
  const { store, workspace, signal } = call;
  const dryRun = flagOf(call.query, 'dryRun') ?? false;
  const upload = await findUpload(call);
  // Its lines and values are held as a whole: a namespace brings in one at a time, and other writes have room beside it.
  await call.hold(IMPORT_BYTES);
  const started = performance.now();
  const { header, versions, values } = await readExport(
    store,
    workspace.tenant,
    store.readUpload(upload.id, signal),
    !dryRun,
    signal,
  );
  const [newest] = await store.versions(workspace.id, { before: workspace.head + 1n, limit: 1 }, signal);
  if (workspace.head > 0n && newest?.origin !== 'import')
    throw new PermanentError(
      'Conflict',
      `workspace ${workspace.name} has files already (version ${workspace.head}); import into a new one`,
    );
  const numbers = [...versions.keys()].toSorted((a, b) => a - b);
  const result = {
    kind: 'ImportResult',
    apiVersion: API_VERSION,
    dryRun,
    versions: numbers.length,
    values: values.length,
  } as const;
  let head = Number(workspace.head);
  for (const number of dryRun ? [] : numbers) {
    if (number <= head) continue;
    if (performance.now() - started > BUDGET_MS) {
      answerJson(call, { ...result, complete: false, version: head } satisfies ImportResult);
      return;
    }
    const lines = versions.get(number) ?? [];
    const changes = lines
      .toSorted((a, b) => Number(b.kind === 'deleted') - Number(a.kind === 'deleted'))
      .map((line) =>
        change(line.path, line.kind, {
          size: BigInt(line.size),
          executable: line.executable,
          ...(line.sha256 === undefined ? {} : { sha256: Buffer.from(line.sha256, 'hex') }),
          ...(line.target === undefined ? {} : { target: line.target }),
        }),
      );
    const written = await write(call, {
      origin: 'import',
      changes,
      // Of this export and version: a request that is sent again finds it done.
      idempotency: { key: `import ${upload.id} ${number}`, requestSha256: Buffer.alloc(32) },
      dryRun: false,
      allOrNothing: true,
      mayDelete: true,
    });
    const [refused] = written.refused;
    if (refused !== undefined)
      throw new PermanentError(
        refused.reason,
        `version ${number} of the export is refused: ${refused.message}; raise the limits of files and ask again`,
      );
    head = Number(written.version);
    if (head !== number)
      throw new PermanentError(
        'Conflict',
        `workspace ${workspace.name} was written by somebody else during the import`,
      );
  }
  if (!dryRun) {
    for (const { key, value } of values) {
      const refusal = refusalOf(await store.writeValue(workspace, key, value, {}, signal), key);
      if (refusal !== undefined) throw refusal;
    }
    await store.dropUpload(workspace.id, upload.id, signal);
  }
  answerJson(call, { ...result, complete: true, version: dryRun ? header.version : head } satisfies ImportResult);
}
