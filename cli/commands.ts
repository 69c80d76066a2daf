/** Every command of `kubectl lathe`: what it takes and what it does. Help, completion and the reference page come from here. */
import { createReadStream, createWriteStream } from 'node:fs';
import { lstat, mkdir, rename, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { compileGlobs } from '../proto/globs.ts';
import type { FileInfo, WriteResult } from '../proto/live/types.ts';
import { NotFoundError, RefusedError, type Lathe, type Workspace } from '../sdk/index.ts';
import type { Output } from './output.ts';
import { UsageError } from './usage.ts';

export type Flags = Readonly<Record<string, string | boolean | undefined>>;
export type Context = Readonly<{
  lathe: Lathe;
  /** An existing workspace of the namespace in use. */
  workspace(name: string): Promise<Workspace>;
  flags: Flags;
  output: Output;
  signal: AbortSignal;
  stdin: NodeJS.ReadableStream;
}>;
export type Command = Readonly<{
  name: string;
  usage: string;
  summary: string;
  details?: string;
  /** Beside those that every command has. */
  flags?: Readonly<Record<string, Readonly<{ type: 'string' | 'boolean'; short?: string; summary: string }>>>;
  args: Readonly<{ min: number; max: number }>;
  run(context: Context, args: readonly string[]): Promise<void>;
}>;

const VERSION_FLAG = { version: { type: 'string', summary: 'Of the files, instead of the head' } } as const;
const DRY_RUN = { 'dry-run': { type: 'boolean', summary: 'Say what would change, and change nothing' } } as const;
const RECURSIVE = { recursive: { type: 'boolean', short: 'r', summary: 'With everything below it' } } as const;

export const COMMANDS: readonly Command[] = [
  {
    name: 'ls',
    usage: 'ls WORKSPACE[:PATH] [GLOB]',
    summary: 'List files',
    details:
      'PATH is a folder; GLOB (in quotes) chooses among what is below it: *, ? within a name, ** across folders.',
    flags: VERSION_FLAG,
    args: { min: 1, max: 2 },
    run: async (context, [target = '', glob]) => {
      const [workspace, path] = await targetOf(context, target, '/');
      const version = numberFlag(context.flags, 'version');
      const items: FileInfo[] = [];
      const prefix = path === '/' ? undefined : `${path}/`;
      const matches = glob === undefined ? () => true : compileGlobs([glob]);
      const options = { version, signal: context.signal, ...(prefix === undefined ? {} : { prefix }) };
      for await (const item of workspace.list(withoutUndefined(options)))
        if (matches(prefix === undefined ? item.path : item.path.slice(path.length))) items.push(item);
      const alone =
        items.length === 0 && path !== '/' ? await workspace.stat(path, withoutUndefined({ version })) : undefined;
      if (alone !== undefined) items.push(alone);
      else if (items.length === 0 && path !== '/' && glob === undefined)
        throw new NotFoundError('NotFound', 404, `there is nothing at ${path} in workspace ${workspace.name}`);
      context.output.table(
        items,
        [
          ['PATH', (item) => item.path],
          ['SIZE', (item) => String(item.size)],
          [
            'MODE',
            (item) =>
              item.kind === 'symlink'
                ? `-> ${item.target ?? ''}`
                : item.kind === 'directory'
                  ? 'folder'
                  : item.executable
                    ? '0755'
                    : '0644',
          ],
        ],
        [
          ['VERSION', (item) => String(item.version)],
          ['SHA256', (item) => item.sha256 ?? ''],
        ],
      );
    },
  },
  {
    name: 'cat',
    usage: 'cat WORKSPACE:PATH...',
    summary: 'Print files, byte for byte',
    flags: VERSION_FLAG,
    args: { min: 1, max: 1_000 },
    run: async (context, targets) => {
      for (const target of targets) {
        const [workspace, path] = await targetOf(context, target);
        const options = withoutUndefined({ version: numberFlag(context.flags, 'version'), signal: context.signal });
        for await (const piece of workspace.readStream(path, options)) await context.output.bytes(piece);
      }
    },
  },
  {
    name: 'put',
    usage: 'put FILE WORKSPACE:PATH',
    summary: 'Write one file; FILE - is standard input',
    flags: {
      ...DRY_RUN,
      executable: { type: 'boolean', short: 'x', summary: 'With the executable bit' },
      'if-match': { type: 'string', summary: 'Only over this content (sha256), or only where nothing is (absent)' },
    },
    args: { min: 2, max: 2 },
    run: async (context, [file = '', target = '']) => {
      const [workspace, path] = await targetOf(context, target);
      const at = path.endsWith('/') && file !== '-' ? `${path}${basename(file)}` : path;
      const { flags, signal, output, stdin } = context;
      const info = file === '-' ? undefined : await lstat(file).catch((error: unknown) => missing(error, file));
      if (info?.isDirectory() === true) throw new UsageError(`${file} is a folder; use: cp ${file} ${target}`);
      const content =
        file === '-' ? (stdin as AsyncIterable<Buffer>) : createReadStream(file, { highWaterMark: 1 << 20 });
      const executable = flags['executable'] === true || ((info?.mode ?? 0) & 0o111) !== 0;
      const result = await workspace.write(
        at,
        content as AsyncIterable<Buffer>,
        withoutUndefined({
          signal,
          executable: executable ? true : file === '-' ? undefined : false,
          ifMatch: stringFlag(flags, 'if-match'),
          dryRun: flags['dry-run'] === true ? true : undefined,
          onProgress: output.progress(`put ${at}`, info?.size),
        }),
      );
      output.results([result]);
    },
  },
  {
    name: 'get',
    usage: 'get WORKSPACE:PATH [FILE]',
    summary: 'Read one file into FILE (default: its name here; - is standard output)',
    flags: VERSION_FLAG,
    args: { min: 1, max: 2 },
    run: async (context, [target = '', given]) => {
      const [workspace, path] = await targetOf(context, target);
      const { signal, output } = context;
      const options = withoutUndefined({
        signal,
        version: numberFlag(context.flags, 'version'),
        onProgress: output.progress(`get ${path}`),
      });
      if (given === '-') {
        for await (const piece of workspace.readStream(path, options)) await output.bytes(piece);
        return;
      }
      const file = given === undefined ? basename(path) : (await isFolder(given)) ? join(given, basename(path)) : given;
      await saved(
        workspace.readStream(path, options),
        file,
        (await workspace.stat(path, options))?.executable === true,
      );
      output.say(`${path} -> ${file}`);
    },
  },
  {
    name: 'cp',
    usage: 'cp FROM TO',
    summary: 'Copy files or folders from here to a workspace, from a workspace to here, or within one',
    details: 'One of FROM and TO, or both, is WORKSPACE:PATH. Folders come with everything in them; links stay links.',
    flags: {
      ...VERSION_FLAG,
      ...DRY_RUN,
      ignore: { type: 'string', summary: 'Globs of what stays here, with commas between' },
    },
    args: { min: 2, max: 2 },
    run: copy,
  },
  {
    name: 'rm',
    usage: 'rm WORKSPACE:PATH...',
    summary: 'Remove files or folders; globs in quotes',
    flags: { ...RECURSIVE, ...DRY_RUN },
    args: { min: 1, max: 1_000 },
    run: async (context, targets) => {
      const { flags, signal, output } = context;
      const results: WriteResult[] = [];
      for (const target of targets) {
        const [workspace, path] = await targetOf(context, target);
        const options = withoutUndefined({
          signal,
          recursive: flags['recursive'] === true ? true : undefined,
          dryRun: flags['dry-run'] === true ? true : undefined,
        });
        if (!/[*?]/.test(path)) {
          results.push(await workspace.remove(path, options));
          continue;
        }
        const paths = await workspace.glob(path, { signal });
        if (paths.length === 0)
          throw new NotFoundError('NotFound', 404, `nothing in workspace ${workspace.name} matches ${path}`);
        const operations = paths.map((each) => ({ op: 'delete' as const, path: each }));
        for (let at = 0; at < operations.length; at += 1_000)
          results.push(await workspace.change(operations.slice(at, at + 1_000), options));
      }
      output.results(results);
    },
  },
  {
    name: 'diff',
    usage: 'diff WORKSPACE [FROM [TO]]',
    summary: 'What changed between two versions, as a unified patch (or -o json, -o wide)',
    details: 'TO is the head, FROM the version before it.',
    flags: { glob: { type: 'string', summary: 'Only these paths' } },
    args: { min: 1, max: 3 },
    run: async (context, [name = '', from, to]) => {
      const workspace = await context.workspace(name);
      const options = withoutUndefined({
        from: number(from, 'FROM'),
        to: number(to, 'TO'),
        glob: stringFlag(context.flags, 'glob'),
        signal: context.signal,
      });
      if (context.output.format === 'table') {
        context.output.text(await workspace.patch(options));
        return;
      }
      const items = [];
      for await (const item of workspace.diff(options)) items.push(item);
      context.output.table(items, [
        ['CHANGE', (item) => item.change],
        ['PATH', (item) => item.path],
        ['SIZE', (item) => `${item.before?.size ?? '-'} -> ${item.after?.size ?? '-'}`],
      ]);
    },
  },
  {
    name: 'history',
    usage: 'history WORKSPACE[:PATH]',
    summary: 'Versions, the newest first: whose, by what, how much',
    flags: { limit: { type: 'string', summary: 'At most so many (100)' } },
    args: { min: 1, max: 1 },
    run: async (context, [target = '']) => {
      const [workspace, path] = await targetOf(context, target, '/');
      const limit = numberFlag(context.flags, 'limit') ?? 100;
      const items = await workspace.versions({ limit, signal: context.signal, ...(path === '/' ? {} : { path }) });
      context.output.table(
        items,
        [
          ['VERSION', (item) => String(item.version)],
          ['AT', (item) => item.at],
          ['BY', (item) => item.turn ?? item.actor ?? item.origin],
          ['ORIGIN', (item) => item.origin],
          ['CREATED', (item) => String(item.created)],
          ['CHANGED', (item) => String(item.changed)],
          ['DELETED', (item) => String(item.deleted)],
        ],
        [
          ['ACTOR', (item) => item.actor ?? ''],
          ['EXECUTION', (item) => item.execution ?? ''],
        ],
      );
    },
  },
  {
    name: 'restore',
    usage: 'restore WORKSPACE VERSION [GLOB...]',
    summary: 'Make the files, or those that the globs name, what they were; as a new version',
    flags: DRY_RUN,
    args: { min: 2, max: 1_000 },
    run: async ({ workspace, flags, output, signal }, [name = '', given, ...paths]) => {
      const version = number(given, 'VERSION') ?? 0;
      const dryRun = flags['dry-run'] === true;
      const request = { version, dryRun, ...(paths.length === 0 ? {} : { paths }) };
      output.results([await (await workspace(name)).restore(request, { signal })]);
    },
  },
  {
    name: 'export',
    usage: 'export WORKSPACE [FILE]',
    summary: 'The whole workspace as one tar; FILE - is standard output',
    flags: { 'head-only': { type: 'boolean', summary: 'Without its history' } },
    args: { min: 1, max: 2 },
    run: async ({ workspace, flags, output, signal }, [name = '', given]) => {
      const file = given ?? `${name}.lathe.tar`;
      const pieces = (await workspace(name)).exportStream(
        withoutUndefined({
          headOnly: flags['head-only'] === true ? true : undefined,
          signal,
          onProgress: output.progress(`export ${name}`),
        }),
      );
      if (file === '-') for await (const piece of pieces) await output.bytes(piece);
      else {
        await saved(pieces, file, false);
        output.say(`${name} -> ${file}`);
      }
    },
  },
  {
    name: 'import',
    usage: 'import FILE WORKSPACE',
    summary: 'An export into a new workspace, history and all; FILE - is standard input',
    details: 'WORKSPACE is made if it is not there; one that has anything in it already is left as it is.',
    flags: { ...DRY_RUN, 'head-only': { type: 'boolean', summary: 'Without the history that it may have' } },
    args: { min: 2, max: 2 },
    run: async ({ lathe, flags, output, signal, stdin }, [file = '', name = '']) => {
      const dryRun = flags['dry-run'] === true ? true : undefined;
      const info = file === '-' ? undefined : await lstat(file).catch((error: unknown) => missing(error, file));
      const workspace = await lathe.workspace({ name, signal });
      const content = file === '-' ? stdin : createReadStream(file, { highWaterMark: 1 << 20 });
      const result = await workspace.import(
        content as AsyncIterable<Buffer>,
        withoutUndefined({
          dryRun,
          headOnly: flags['head-only'] === true ? true : undefined,
          signal,
          onProgress: output.progress(`import ${file}`, info?.size),
        }),
      );
      // The message has the name as it may be shown.
      for (const { reason, message } of result.refused) output.say(`refused, ${reason}: ${message}`);
      if (output.format === 'table')
        output.say(
          `${dryRun === true ? 'would be' : 'is'} version ${result.version}: ${result.versions} versions, ${result.values} values`,
        );
      else output.object(result);
    },
  },
  {
    name: 'status',
    usage: 'status WORKSPACE',
    summary: 'What a workspace is at: version, size, conditions, limits',
    args: { min: 1, max: 1 },
    run: async ({ lathe, output, signal }, [name = '']) => {
      output.object(await lathe.object(name, undefined, signal));
    },
  },
];

async function copy(context: Context, [from = '', to = '']: readonly string[]): Promise<void> {
  const { flags, output, signal } = context;
  const [remoteFrom, remoteTo] = [isRemote(from), isRemote(to)];
  const dryRun = flags['dry-run'] === true ? true : undefined;
  const version = numberFlag(flags, 'version');
  if (!remoteFrom && !remoteTo)
    throw new UsageError(
      `neither ${from} nor ${to} is WORKSPACE:PATH; write ./${from} for a file with a colon in its name`,
    );
  if (remoteFrom && remoteTo) {
    const [source, fromPath] = await targetOf(context, from);
    const [target, toPath] = await targetOf(context, to);
    if (source.name !== target.name) throw new UsageError('from one workspace to another goes by way of a folder here');
    const operation = {
      op: 'copy' as const,
      from: fromPath,
      to: toPath.endsWith('/') ? `${toPath}${basename(fromPath)}` : toPath,
    };
    output.results([await target.change([operation], withoutUndefined({ signal, dryRun }))]);
    return;
  }
  if (remoteTo) {
    const [workspace, path] = await targetOf(context, to, '/');
    const info = await lstat(from).catch((error: unknown) => missing(error, from));
    if (info.isDirectory()) {
      const ignore = stringFlag(flags, 'ignore')?.split(',');
      output.results(
        await workspace.upload(
          from,
          withoutUndefined({ to: path, signal, ignore, dryRun, onProgress: output.progress(`cp ${from}`) }),
        ),
      );
      return;
    }
    const at = path.endsWith('/') ? `${path}${basename(from)}` : path;
    const result = await workspace.write(
      at,
      createReadStream(from, { highWaterMark: 1 << 20 }) as AsyncIterable<Buffer>,
      withoutUndefined({
        signal,
        dryRun,
        executable: (info.mode & 0o111) !== 0,
        onProgress: output.progress(`cp ${from}`, info.size),
      }),
    );
    output.results([result]);
    return;
  }
  const [workspace, path] = await targetOf(context, from, '/');
  const single = path === '/' ? undefined : await workspace.stat(path, withoutUndefined({ version, signal }));
  if (single !== undefined && single.kind === 'regular') {
    const file = (await isFolder(to)) ? join(to, basename(path)) : to;
    const onProgress = output.progress(`cp ${path}`, single.size);
    await saved(workspace.readStream(path, withoutUndefined({ version, signal, onProgress })), file, single.executable);
    output.say(`${path} -> ${file}`);
    return;
  }
  const onProgress = output.progress(`cp ${path}`);
  const { files, bytes } = await workspace.download(to, withoutUndefined({ from: path, version, signal, onProgress }));
  if (files === 0)
    throw new NotFoundError('NotFound', 404, `there is nothing at ${path} in workspace ${workspace.name}`);
  output.say(`${files} files, ${bytes} bytes -> ${to}`);
}

/** As kubectl cp: NAME:PATH, unless it is a path of this machine. */
function isRemote(target: string): boolean {
  return /^[^/.][^/:]*:/.test(target);
}

async function targetOf(context: Context, target: string, fallback?: string): Promise<[Workspace, string]> {
  const [, name, given] = /^([^:]+)(?::(.*))?$/s.exec(target) ?? [];
  const path = given === undefined || given === '' ? fallback : given;
  if (name === undefined || path === undefined) throw new UsageError(`${JSON.stringify(target)} is not WORKSPACE:PATH`);
  const workspace = await context.workspace(name);
  if (/^(\/|\.\/?|\/workspace\/?)$/.test(path)) return [workspace, '/'];
  const resolved = workspace.resolvePath(path);
  // A trailing slash says "into that folder".
  return [workspace, path.endsWith('/') && fallback === undefined ? `${resolved}/` : resolved];
}

async function isFolder(path: string): Promise<boolean> {
  return (await lstat(path).catch(() => undefined))?.isDirectory() ?? false;
}

/** Beside and renamed, so that a transfer that breaks leaves what was there. */
async function saved(pieces: AsyncIterable<Buffer>, file: string, executable: boolean): Promise<void> {
  await mkdir(dirname(file), { recursive: true });
  const beside = `${file}.lathe-${process.pid}`;
  try {
    await pipeline(Readable.from(pieces), createWriteStream(beside, { flags: 'wx', mode: executable ? 0o755 : 0o644 }));
    await rename(beside, file);
  } catch (error) {
    await rm(beside, { force: true });
    throw error;
  }
}

function missing(error: unknown, file: string): never {
  if (error instanceof Error && 'code' in error && error.code === 'ENOENT')
    throw new NotFoundError('NotFound', 0, `there is no ${file} on this machine`);
  throw new RefusedError(
    'PathRefused',
    0,
    `${file} can't be read: ${error instanceof Error ? error.message : String(error)}`,
  );
}

function stringFlag(flags: Flags, name: string): string | undefined {
  const value = flags[name];
  return typeof value === 'string' ? value : undefined;
}

function numberFlag(flags: Flags, name: string): number | undefined {
  return number(stringFlag(flags, name), `--${name}`);
}

function number(text: string | undefined, what: string): number | undefined {
  if (text === undefined) return undefined;
  if (!/^\d{1,15}$/.test(text)) throw new UsageError(`${what} is a number, not ${JSON.stringify(text)}`);
  return Number(text);
}

function withoutUndefined<T extends object>(of: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(of).filter(([, value]) => value !== undefined)) as {
    [K in keyof T]: Exclude<T[K], undefined>;
  };
}
