/** The format of an export (docs/reference/export.md): what its members are, in which order, and what their lines hold. */
import { createHash } from 'node:crypto';
import { z } from 'zod';
import { KV_BYTES } from '../../../proto/live/types.ts';

/** One more whenever an older release could not read it as it is meant. */
export const EXPORT_FORMAT = 1;
export const HEADER = 'lathe-export.json';
export const MANIFEST = 'manifest.sha256';
/** Folders whose members are pages, `NNNNNN.jsonl`, and single members of lines, in the order in which they come. */
export const PAGED = ['history', 'versions', 'events'] as const;
export const STATE = ['executions', 'kv', 'sessions', 'turns'] as const;
/** Of the head alone: files and values. */
export const HEAD_STATE = ['kv'] as const;
/** Open requests: there are none yet. */
export const REQUESTS = 'requests.jsonl';
/** Of one line; a command has 64 KiB, a value 256 KiB in base64, an answer a reply's length. */
export const MAX_LINE_BYTES = 8 * 1024 * 1024;

export const pageName = (folder: string, number: number) => `${folder}/${String(number).padStart(6, '0')}.jsonl`;

const int4 = z.int().min(0).max(2_147_483_647);
const id = z.string().regex(/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
const sha256 = z.string().regex(/^[0-9a-f]{64}$/);
const number = z.int().min(0);
const version = z.int().min(1);
const word = z.string().max(65_536);
const at = z.string().refine((text) => {
  if (!/^[12]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$/.test(text)) return false;
  const ms = Date.parse(text);
  // A 31st of February would be moved to March.
  return !Number.isNaN(ms) && new Date(ms).toISOString().slice(0, 19) === text.slice(0, 19);
});

export const exportHeader = z.strictObject({
  format: z.int().min(1),
  workspace: z.strictObject({ name: z.string().max(253), displayName: z.string().max(1_024).optional() }),
  version: number,
  seq: number,
  headOnly: z.boolean(),
  createdAt: at.optional(),
});
export type ExportHeader = z.infer<typeof exportHeader>;

/** What each line is; strict, for what this release does not know it could not keep. */
export const LINES = {
  history: z.strictObject({
    version,
    path: z.string().max(4_096),
    kind: z.enum(['regular', 'symlink', 'directory', 'deleted']),
    executable: z.boolean(),
    size: number,
    sha256: sha256.optional(),
    target: z.string().max(4_096).optional(),
    execution: id.optional(),
  }),
  versions: z.strictObject({
    version,
    seq: version,
    at,
    origin: z.enum(['execution', 'outside', 'api', 'seed', 'import', 'restore']),
    actor: word.optional(),
    turn: id.optional(),
    session: word.optional(),
    execution: id.optional(),
    created: int4,
    changed: int4,
    deleted: int4,
  }),
  events: z.strictObject({
    seq: version,
    session: word.optional(),
    turn: id.optional(),
    execution: id.optional(),
    type: z.string().min(1).max(256),
    v: int4,
    actor: word.optional(),
    at,
    payload: z.unknown().optional(),
    payloadSha256: sha256.optional(),
  }),
  executions: z.strictObject({
    id,
    turn: id.optional(),
    session: word.optional(),
    toolUseId: word.optional(),
    actor: word.optional(),
    command: z.string(),
    timeoutMs: int4,
    state: z.enum(['planned', 'dispatched', 'done', 'unknown']),
    baseVersion: number,
    version: number.optional(),
    result: z.unknown().optional(),
    outputSha256: sha256.optional(),
    dispatchedAt: at,
    doneAt: at.optional(),
  }),
  kv: z.strictObject({
    key: z.string().min(1).max(512),
    sha256,
    updatedAt: at,
    value: z.base64().max(Math.ceil(KV_BYTES / 3) * 4),
  }),
  sessions: z.strictObject({ name: word.min(1), createdAt: at }),
  turns: z.strictObject({
    id,
    name: z.string().min(1).max(253),
    session: word.min(1),
    spec: z.looseObject({}),
    specHash: word,
    phase: z.enum(['Queued', 'Running', 'NeedsContinuation', 'Completed', 'Blocked', 'Cancelled', 'Failed']),
    reason: word.optional(),
    message: z.string().optional(),
    answer: z.string().optional(),
    exitCode: z.int().min(-2_147_483_648).max(2_147_483_647).optional(),
    output: z.string().optional(),
    steps: int4,
    usage: z.looseObject({}).optional(),
    files: z.looseObject({}).optional(),
    fromVersion: number.optional(),
    toVersion: number.optional(),
    queuedAt: at,
    startedAt: at.optional(),
    finishedAt: at.optional(),
  }),
} as const;
export type LineKind = keyof typeof LINES;
export type LineOf<K extends LineKind> = z.infer<(typeof LINES)[K]>;

export type MemberEssence = Readonly<{
  name: string;
  type: 'file' | 'symlink' | 'directory';
  executable: boolean;
  /** Of the content; of a link's target. */
  sha256: string;
}>;

/**
 * What the manifest says of a member: `sha256sum -c manifest.sha256` checks the contents, comments hold what it does not
 * know. Names are written as it reads them.
 */
export function manifestLine({ name, type, executable, sha256: hash }: MemberEssence): string {
  const odd = /[\\\n]/.test(name);
  const shown = odd ? name.replaceAll('\\', '\\\\').replaceAll('\n', '\\n') : name;
  if (type === 'symlink') return `# symlink ${hash}  ${shown}\n`;
  if (type === 'directory') return `# directory  ${shown}\n`;
  return `${odd ? '\\' : ''}${hash}  ${shown}\n${executable ? `# executable  ${shown}\n` : ''}`;
}

export function sha256Of(content: Buffer | string): string {
  return createHash('sha256').update(content).digest('hex');
}
