/** `export` and `import`: a whole workspace as one file, in parts (docs/reference/export.md). */
import type { Imported, ImportProgress } from '../../proto/gen/lathe/turns/v1/turns.ts';
import { API_VERSION, PART_BYTES, type ImportResult } from '../../proto/live/types.ts';
import { PermanentError } from '../errors.ts';
import { exportRange, exportSize } from '../files/export/export.ts';
import { pinExport, type Pin } from '../files/export/state.ts';
import { importKey } from '../files/import/import.ts';
import { answerJson, answerStream, flagOf, HEADERS, numberOf, versionOf, type Call } from './call.ts';
import { beginImport, findUpload, putUpload } from './uploads.ts';

/** An answer comes within this; whoever asks again joins what runs. The API server ends a request at 60 s. */
const PATIENCE_MS = 25_000;

/** At most 8 MiB from `offset` on; the first answer's headers say what the other parts are asked with, and how long it is. */
export async function getExport(call: Call): Promise<void> {
  const { store, workspace, query, response, signal } = call;
  const offset = numberOf(query, 'offset') ?? 0;
  const pin = await pinOf(call);
  const source = { store, workspace, pin };
  const size = await exportSize(source);
  if (offset > size) throw new PermanentError('RangeNotSatisfiable', `this export has ${size} bytes`);
  const length = Math.min(PART_BYTES, size - offset);
  response.writeHead(200, {
    'content-type': 'application/x-tar',
    'content-length': length,
    [HEADERS.version]: String(pin.version),
    [HEADERS.seq]: String(pin.seq),
    [HEADERS.state]: pin.state,
    [HEADERS.size]: String(size),
  });
  await answerStream(call, exportRange(source, offset, length, signal));
}

/** As the first answer gave it, or as the workspace is now. */
async function pinOf(call: Call): Promise<Pin> {
  const { store, workspace, query, signal } = call;
  const headOnly = flagOf(query, 'headOnly') ?? false;
  const seq = numberOf(query, 'seq');
  if (seq !== undefined && BigInt(seq) > workspace.last_seq)
    throw new PermanentError('NotFound', `there is no event ${seq}; the last is ${workspace.last_seq}`);
  const at = {
    ...(query.has('version') ? { version: versionOf(call) } : {}),
    ...(seq === undefined ? {} : { seq: BigInt(seq) }),
  };
  const state = query.get('state');
  if (state === null) return await pinExport(store, workspace, { headOnly, ...at }, signal);
  if (!/^[0-9a-f]{64}$/.test(state) || at.version === undefined || at.seq === undefined)
    throw new PermanentError('BadRequest', 'version, seq and state come together, as the first answer gave them');
  return { headOnly, version: at.version, seq: at.seq, state };
}

export async function putImport(call: Call): Promise<void> {
  await putUpload(call);
}

/** `uploads=true` begins; `upload=ID` takes what was uploaded, and is asked again until it says that it is complete. */
export async function postImport(call: Call): Promise<void> {
  if (flagOf(call.query, 'uploads') === true) return await beginImport(call);
  const { store, workspace, query, identity, owner, signal } = call;
  const dryRun = flagOf(query, 'dryRun') ?? false;
  const upload = query.get('upload') ?? '';
  // One that is complete has no upload any more; the owner still knows its answer.
  await findUpload(call).catch(async (error: unknown) => {
    if ((await store.answered(workspace, importKey(upload), signal)) === undefined) throw error;
  });
  const answer = await owner.import(
    {
      workspace: { namespace: workspace.namespace, name: workspace.name },
      upload,
      dryRun,
      headOnly: flagOf(query, 'headOnly') ?? false,
      actor: identity.user,
    },
    PATIENCE_MS,
    signal,
  );
  if ('imported' in answer && !dryRun) await store.dropUpload(workspace.id, upload, signal);
  answerJson(call, resultOf(answer, dryRun));
}

function resultOf(
  answer: Readonly<{ imported: Imported } | { progress: ImportProgress }>,
  dryRun: boolean,
): ImportResult {
  const base = { kind: 'ImportResult', apiVersion: API_VERSION, dryRun } as const;
  if ('progress' in answer) {
    const nothing = { version: 0, versions: 0, events: 0, turns: 0, values: 0, refused: [], refusedCount: 0 };
    const { files, bytes } = answer.progress;
    return { ...base, ...nothing, complete: false, files: Number(files), bytes: Number(bytes) };
  }
  const { imported } = answer;
  return {
    ...base,
    complete: true,
    version: Number(imported.version),
    files: Number(imported.files),
    bytes: Number(imported.bytes),
    versions: Number(imported.versions),
    events: Number(imported.events),
    turns: Number(imported.turns),
    values: Number(imported.values),
    refused: imported.refused,
    refusedCount: Number(imported.refusedCount),
  };
}
