/** `POST files {"operations": […]}`: several changes of names and bits as one version. */
import type { WriteChange } from '../../proto/gen/lathe/turns/v1/turns.ts';
import { escapeName } from '../../proto/paths.ts';
import { z } from 'zod';
import { PermanentError } from '../errors.ts';
import type { FileEntry } from '../store/rows.ts';
import { checkedPath, type Call } from './call.ts';
import { change } from './writes.ts';

const MAX_OPERATIONS = 1_000;
const path = z.string();
const move = { from: path, to: path, overwrite: z.boolean().optional() };
const schema = z.object({
  operations: z
    .array(
      z.discriminatedUnion('op', [
        z.object({
          op: z.literal('delete'),
          path,
          recursive: z.boolean().optional(),
          ifMatch: z
            .string()
            .regex(/^[0-9a-f]{64}$/)
            .optional(),
        }),
        z.object({ op: z.literal('rename'), ...move }),
        z.object({ op: z.literal('copy'), ...move }),
        z.object({ op: z.literal('symlink'), path, target: z.string().min(1).max(4_096) }),
        z.object({ op: z.literal('mkdir'), path }),
        z.object({ op: z.literal('chmod'), path, executable: z.boolean() }),
      ]),
    )
    .min(1)
    .max(MAX_OPERATIONS),
});
type Operation = z.infer<typeof schema>['operations'][number];

/** Each against the tree as it is now, not as the one before it leaves it. @throws PermanentError BadRequest, NotFound, Conflict */
export async function operationsOf(call: Call, body: unknown): Promise<readonly WriteChange[]> {
  const parsed = schema.safeParse(body);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw new PermanentError('BadRequest', `${issue?.path.join('.') ?? ''}: ${issue?.message ?? 'not understood'}`);
  }
  const changes: WriteChange[] = [];
  for (const operation of parsed.data.operations) changes.push(...(await changesOf(call, operation)));
  return changes;
}

async function changesOf(call: Call, operation: Operation): Promise<readonly WriteChange[]> {
  switch (operation.op) {
    case 'delete':
      return [
        change(checkedPath(operation.path), 'deleted', {
          mustExist: true,
          recursive: operation.recursive ?? false,
          ...(operation.ifMatch === undefined ? {} : { ifMatch: Buffer.from(operation.ifMatch, 'hex') }),
        }),
      ];
    case 'symlink':
      return [change(checkedPath(operation.path), 'symlink', { target: operation.target })];
    case 'mkdir':
      return [change(checkedPath(operation.path), 'directory')];
    case 'chmod': {
      const at = checkedPath(operation.path);
      const [entry] = await treeAt(call, at);
      if (entry?.kind !== 'regular') throw new PermanentError('NotFound', `${escapeName(at)} is no file`);
      return [putOf(entry, at, { executable: operation.executable, ...unchanged(entry) })];
    }
    case 'copy':
    case 'rename': {
      const [from, to] = [checkedPath(operation.from), checkedPath(operation.to)];
      if (to === from || to.startsWith(`${from}/`))
        throw new PermanentError('Conflict', `${escapeName(from)} can't go to ${escapeName(to)}, which is within it`);
      const entries = await treeAt(call, from);
      if (entries.length === 0) throw new PermanentError('NotFound', `there is nothing at ${escapeName(from)}`);
      if (operation.overwrite !== true && (await treeAt(call, to)).length > 0)
        throw new PermanentError('Conflict', `${escapeName(to)} exists already; say overwrite to replace it`);
      return [
        ...(operation.overwrite === true ? [change(to, 'deleted', { recursive: true })] : []),
        ...entries.map((entry) =>
          putOf(entry, `${to}${entry.path.slice(from.length)}`, operation.overwrite === true ? {} : ABSENT),
        ),
        ...(operation.op === 'rename' ? moved(from, entries) : []),
      ];
    }
  }
}

/** Nothing may be there. */
const ABSENT = { ifMatch: Buffer.alloc(0) } as const;

/** What was read is what is written elsewhere: a content that came between is not lost with its old name. */
function moved(from: string, entries: readonly FileEntry[]): readonly WriteChange[] {
  const whole = change(from, 'deleted', { recursive: true, mustExist: true });
  const [only] = entries;
  if (entries.length === 1 && only?.path === from) return [{ ...whole, ...unchanged(only) }];
  return [...entries.map((entry) => change(entry.path, 'deleted', unchanged(entry))), whole];
}

/** Of links and folders there is no hash to compare. */
function unchanged({ sha256 }: FileEntry): Partial<WriteChange> {
  return sha256 === null ? {} : { ifMatch: sha256 };
}

/** What is at a path: a file, everything in the folder, or nothing. */
async function treeAt({ store, workspace, signal }: Call, at: string): Promise<readonly FileEntry[]> {
  const ground = await store.ground(workspace.id, [at], signal);
  const entry = ground.entries.get(at);
  if (entry !== undefined) return [entry];
  return ground.folders.has(at)
    ? await store.below(workspace.id, at, workspace.effective.files.maxFiles * 2, signal)
    : [];
}

function putOf(entry: FileEntry, path: string, more: Partial<WriteChange> = {}): WriteChange {
  return change(path, entry.kind, {
    size: entry.size,
    executable: entry.executable,
    ...(entry.sha256 === null ? {} : { sha256: entry.sha256 }),
    ...(entry.target === null ? {} : { target: entry.target }),
    ...more,
  });
}
