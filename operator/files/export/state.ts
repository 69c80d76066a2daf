/**
 * What has no versions of its own: turns, executions, sessions, values. An export keeps it as it was when the export began,
 * in contents of the tenant, so that any replica goes on with the same bytes for as long as unused contents are kept (24 h).
 */
import { createHash } from 'node:crypto';
import { z } from 'zod';
import { PermanentError } from '../../errors.ts';
import type { ExportStore } from '../../store/export-store.ts';
import type { WorkspaceRow } from '../../store/rows.ts';
import type { WorkspaceStore } from '../../store/workspace-store.ts';
import { HEAD_STATE, REQUESTS, STATE } from './format.ts';

/** Which export: all that a later request must say to get the same bytes. `state`: hex. */
export type Pin = Readonly<{ version: bigint; seq: bigint; headOnly: boolean; state: string }>;
export type Stores = WorkspaceStore & ExportStore;

const part = z.object({ sha256: z.string().regex(/^[0-9a-f]{64}$/), size: z.int().min(0) });
const stored = z.object({
  /** Whose it is: a hash alone proves nothing. */
  workspace: z.string(),
  headOnly: z.boolean(),
  members: z.array(part.extend({ name: z.string(), parts: z.array(part) })),
  /** Hashes of outputs, 32 bytes each, in order. */
  outputs: z.array(part),
});
export type State = z.infer<typeof stored>;

const PART_BYTES = 1024 * 1024;
const MAX_STATE_BYTES = 16 * 1024 * 1024;

/** The workspace as it is now; `at`: an older version and log of it. */
export async function pinExport(
  store: Stores,
  workspace: WorkspaceRow,
  options: Readonly<{ headOnly: boolean; version?: bigint; seq?: bigint }>,
  signal?: AbortSignal,
): Promise<Pin> {
  const { headOnly } = options;
  const put = async (content: Buffer) => {
    const [hash] = await store.putBlobs(workspace.tenant, [content], signal);
    return { sha256: hash?.toString('hex') ?? '', size: content.length };
  };
  const kinds = headOnly ? HEAD_STATE : STATE;
  const members = new Map(
    kinds.map((kind) => [kind, { hash: createHash('sha256'), size: 0, held: '', parts: [] as z.infer<typeof part>[] }]),
  );
  const outputs = new Set<string>();
  const now = await store.exportState(
    workspace.id,
    kinds,
    async (kind, lines, hashes) => {
      const member = members.get(kind as (typeof kinds)[number]);
      if (member === undefined) return;
      for (const hash of hashes) outputs.add(hash.toString('hex'));
      member.held += lines;
      if (member.held.length < PART_BYTES) return;
      const content = Buffer.from(member.held);
      member.held = '';
      member.hash.update(content);
      member.size += content.length;
      member.parts.push(await put(content));
    },
    signal,
  );
  const state: State = { workspace: workspace.id, headOnly, members: [], outputs: [] };
  for (const [kind, { hash, size, held, parts }] of members) {
    const content = Buffer.from(held);
    const last = content.length === 0 ? [] : [await put(content)];
    state.members.push({
      name: `${kind}.jsonl`,
      sha256: hash.update(content).digest('hex'),
      size: size + content.length,
      parts: [...parts, ...last],
    });
  }
  const empty = createHash('sha256').digest('hex');
  if (!headOnly) state.members.push({ name: REQUESTS, sha256: empty, size: 0, parts: [] });
  state.members.sort((a, b) => (a.name < b.name ? -1 : 1));
  if (outputs.size > 0) state.outputs.push(await put(Buffer.from([...outputs].sort().join(''), 'hex')));
  const { sha256 } = await put(Buffer.from(JSON.stringify(state)));
  return { headOnly, state: sha256, version: options.version ?? now.version, seq: options.seq ?? now.seq };
}

/** @throws PermanentError Gone */
export async function readState(
  store: WorkspaceStore,
  { id, tenant }: WorkspaceRow,
  pin: Pin,
  signal?: AbortSignal,
): Promise<State> {
  const gone = () => new PermanentError('Gone', 'this export is over 24 hours old or was never begun; begin anew');
  const pieces: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const piece of store.readBlob(tenant, Buffer.from(pin.state, 'hex'), signal)) {
      pieces.push(piece);
      bytes += piece.length;
      // Whatever else has this hash is not looked at in full.
      if (bytes > MAX_STATE_BYTES) throw gone();
    }
    const state = stored.parse(JSON.parse(Buffer.concat(pieces).toString('utf8')));
    if (state.workspace === id && state.headOnly === pin.headOnly) return state;
  } catch (error) {
    if (error instanceof SyntaxError || error instanceof z.ZodError) throw gone();
    if (error instanceof PermanentError && error.reason === 'NotFound') throw gone();
    throw error;
  }
  throw gone();
}

/** Hashes of what executions printed, in order. */
export async function outputsOf(
  store: WorkspaceStore,
  tenant: string,
  state: State,
  signal?: AbortSignal,
): Promise<readonly Buffer[]> {
  const pieces: Buffer[] = [];
  for (const { sha256 } of state.outputs)
    for await (const piece of store.readBlob(tenant, Buffer.from(sha256, 'hex'), signal)) pieces.push(piece);
  const all = Buffer.concat(pieces);
  return Array.from({ length: all.length / 32 }, (_, i) => all.subarray(i * 32, (i + 1) * 32));
}
