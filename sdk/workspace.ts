/** The files of one workspace. Nothing here needs a pod. */
import {
  HEADERS,
  PART_BYTES,
  type FileChange,
  type FileDiff,
  type FileInfo,
  type FileKind,
  type FileList,
  type FileOperation,
  type ImportResult,
  type KeyValueList,
  type Upload,
  type VersionInfo,
  type VersionList,
  type WriteResult,
} from '../proto/live/types.ts';
import { normalisePath } from '../proto/paths.ts';
import { LatheError, NotFoundError, RefusedError } from './errors.ts';
import { downloadFolder } from './download.ts';
import type { Answer, Ask, Transport } from './transport.ts';
import { uploadFolder } from './upload.ts';

/** Called now and then on long work. `totalBytes` and `totalFiles`: as far as they are known. */
export type Progress = Readonly<{ doneBytes: number; totalBytes?: number; doneFiles: number; totalFiles?: number }>;
export type Options = Readonly<{ signal?: AbortSignal | undefined }>;
export type Transfer = Options & Readonly<{ onProgress?: (progress: Progress) => void }>;
export type WriteOptions = Transfer &
  Readonly<{
    executable?: boolean;
    /** Hash (hex) of what must be there; `absent`: nothing may be. */
    ifMatch?: string;
    dryRun?: boolean;
  }>;
export type Content = string | Uint8Array | AsyncIterable<Uint8Array>;
export type FileStat = Omit<FileInfo, 'target'> & Readonly<{ head: number }>;

export class Workspace {
  readonly name: string;
  readonly namespace: string;
  readonly #transport: Transport;
  readonly #base: string;
  readonly kv: Readonly<{
    get(key: string, options?: Options): Promise<Buffer | undefined>;
    put(key: string, value: string | Uint8Array, options?: Options & Readonly<{ ifMatch?: string }>): Promise<void>;
    delete(key: string, options?: Options): Promise<boolean>;
    list(prefix?: string, options?: Options): AsyncIterable<KeyValueList['items'][number]>;
  }>;

  /** Use `createLathe().workspace`. */
  constructor(transport: Transport, base: string, name: string, namespace: string) {
    this.#transport = transport;
    this.#base = base;
    this.name = name;
    this.namespace = namespace;
    this.kv = {
      get: async (key, options) => {
        try {
          return (await this.ask('GET', 'kv', { query: { key }, ...signalOf(options) })).body;
        } catch (error) {
          if (error instanceof NotFoundError) return undefined;
          throw error;
        }
      },
      put: async (key, value, options = {}) => {
        await this.ask('PUT', 'kv', {
          query: { key },
          body: Buffer.from(value),
          headers: preconditions(options.ifMatch),
          ...signalOf(options),
        });
      },
      delete: async (key, options) => {
        try {
          await this.ask('DELETE', 'kv', { query: { key }, ...signalOf(options) });
          return true;
        } catch (error) {
          if (error instanceof NotFoundError) return false;
          throw error;
        }
      },
      list: (prefix = '', options) =>
        this.#pages<KeyValueList, KeyValueList['items'][number]>('kv', { prefix }, options),
    };
  }

  /** One request below the workspace. For what has no method here. */
  ask(method: string, subresource: string, ask?: Ask): Promise<Answer> {
    return this.#transport.ask(method, `${this.#base}/${subresource}`, ask);
  }

  /** The one form of a path, as every part of Lathe has it. @throws RefusedError PathRefused */
  resolvePath(path: string): string {
    const result = normalisePath(path);
    if ('refused' in result) throw new RefusedError('PathRefused', 400, result.refused);
    return result.path;
  }

  /** Creates or replaces; of any size, in parts where it is large. Whatever the way, readers see all of it or nothing. */
  async write(path: string, content: Content, options: WriteOptions = {}): Promise<WriteResult> {
    const at = this.resolvePath(path);
    const { executable, dryRun, signal, onProgress } = options;
    const headers = preconditions(options.ifMatch);
    const parts = partsOf(content);
    const first = await parts.next();
    const whole = first.done === true ? Buffer.alloc(0) : first.value;
    const second = whole.length < PART_BYTES ? undefined : await parts.next();
    if (second === undefined || second.done === true)
      return jsonOf<WriteResult>(
        await this.ask('PUT', 'files', { query: { path: at, executable, dryRun }, body: whole, headers, signal }),
      );
    const upload = jsonOf<Upload>(await this.ask('POST', 'files', { query: { path: at, uploads: true }, signal }));
    let offset = 0;
    const send = async (body: Buffer) => {
      // A part that was sent twice is stored once, so a lost answer costs nothing.
      await this.ask('PUT', 'files', { query: { upload: upload.id, offset }, body, signal });
      offset += body.length;
      onProgress?.({ doneBytes: offset, doneFiles: 0, totalFiles: 1 });
    };
    await send(whole);
    await send(second.value);
    for await (const part of parts) await send(part);
    return jsonOf<WriteResult>(
      await this.ask('POST', 'files', {
        query: { upload: upload.id, complete: true, executable, dryRun },
        headers,
        signal,
      }),
    );
  }

  /** @throws NotFoundError */
  async read(path: string, options: Options & Readonly<{ version?: number }> = {}): Promise<Buffer> {
    const pieces: Buffer[] = [];
    for await (const piece of this.readStream(path, options)) pieces.push(piece);
    const [only] = pieces;
    return pieces.length === 1 && only !== undefined ? only : Buffer.concat(pieces);
  }

  /** In parts of at most 8 MiB, all of one version. @throws NotFoundError */
  async *readStream(path: string, options: Transfer & Readonly<{ version?: number }> = {}): AsyncIterable<Buffer> {
    const { signal, onProgress } = options;
    const query = { path: this.resolvePath(path), version: options.version };
    let total = Number.POSITIVE_INFINITY;
    for (let from = 0; from < total;) {
      const { code, headers, body } = await this.ask('GET', 'files', {
        query,
        headers: { range: `bytes=${from}-${from + PART_BYTES - 1}` },
        signal,
      }).catch((error: unknown) => {
        // An empty file has no range.
        if (from === 0 && isEmpty(error)) return { code: 200, headers: {}, body: Buffer.alloc(0) } as Answer;
        throw error;
      });
      query.version ??= Number(headers[HEADERS.version]);
      total = code === 206 ? Number(/\/(\d+)$/.exec(String(headers['content-range']))?.[1]) : from + body.length;
      from += body.length;
      onProgress?.({ doneBytes: from, totalBytes: total, doneFiles: 0, totalFiles: 1 });
      yield body;
    }
  }

  async readText(path: string, options: Options & Readonly<{ version?: number }> = {}): Promise<string> {
    return (await this.read(path, options)).toString('utf8');
  }

  async exists(path: string, options: Options & Readonly<{ version?: number }> = {}): Promise<boolean> {
    return (await this.stat(path, options)) !== undefined;
  }

  /** Undefined: nothing is there. A folder with something in it is no entry. */
  async stat(
    path: string,
    { signal, version }: Options & Readonly<{ version?: number }> = {},
  ): Promise<FileStat | undefined> {
    const at = this.resolvePath(path);
    try {
      const { headers } = await this.ask('HEAD', 'files', { query: { path: at, version }, signal });
      const sha256 = /^"([0-9a-f]{64})"$/.exec(String(headers.etag))?.[1];
      return {
        path: at,
        kind: String(headers[HEADERS.kind]) as FileKind,
        executable: headers[HEADERS.mode] === '0755' && headers[HEADERS.kind] === 'regular',
        size: Number(headers['content-length'] ?? 0),
        version: Number(headers[HEADERS.fileVersion]),
        head: Number(headers[HEADERS.version]),
        ...(sha256 === undefined ? {} : { sha256 }),
      };
    } catch (error) {
      if (error instanceof NotFoundError) return undefined;
      throw error;
    }
  }

  /** In order of path, all of one version. */
  list(
    options: Options & Readonly<{ prefix?: string; glob?: string; version?: number }> = {},
  ): AsyncIterable<FileInfo> {
    const { prefix, glob, version } = options;
    return this.#pages<FileList, FileInfo>('files', { prefix, glob, version }, options);
  }

  async glob(pattern: string, options: Options & Readonly<{ version?: number }> = {}): Promise<readonly string[]> {
    const paths: string[] = [];
    for await (const { path } of this.list({ ...options, glob: pattern })) paths.push(path);
    return paths;
  }

  /** @throws NotFoundError; ConflictError for a folder with something in it, unless `recursive` */
  async remove(path: string, options: WriteOptions & Readonly<{ recursive?: boolean }> = {}): Promise<WriteResult> {
    const { recursive, dryRun, signal } = options;
    return jsonOf<WriteResult>(
      await this.ask('DELETE', 'files', {
        query: { path: this.resolvePath(path), recursive, dryRun },
        headers: preconditions(options.ifMatch),
        signal,
      }),
    );
  }

  rename(from: string, to: string, options: Options & Readonly<{ overwrite?: boolean }> = {}): Promise<WriteResult> {
    const { overwrite } = options;
    return this.change(
      [{ op: 'rename', from: this.resolvePath(from), to: this.resolvePath(to), ...(overwrite ? { overwrite } : {}) }],
      options,
    );
  }

  /** Several changes of names and bits as one version, or none of them. */
  async change(
    operations: readonly FileOperation[],
    options: Options & Readonly<{ dryRun?: boolean }> = {},
  ): Promise<WriteResult> {
    const { dryRun, signal } = options;
    return jsonOf<WriteResult>(
      await this.ask('POST', 'files', { query: { dryRun }, body: JSON.stringify({ operations }), signal }),
    );
  }

  /** Several files of any size together at most 8 MiB as one version; `files`: by path. */
  async writeAll(files: Readonly<Record<string, string | Uint8Array>>, options: Options = {}): Promise<WriteResult> {
    const { tarOf } = await import('./upload.ts');
    const entries = Object.entries(files).map(([path, content]) => ({
      path: this.resolvePath(path),
      content: Buffer.from(content),
    }));
    return jsonOf<WriteResult>(await this.ask('PUT', 'archive', { body: await tarOf(entries), ...signalOf(options) }));
  }

  /** A folder of this machine with what is in it. Links are kept as links; what is there already and not here stays. */
  upload(
    folder: string,
    options: Transfer & Readonly<{ to?: string; ignore?: readonly string[]; dryRun?: boolean }> = {},
  ): Promise<readonly WriteResult[]> {
    return uploadFolder(this, folder, options);
  }

  /** Into a folder of this machine, never through a link that is there. @returns how many files and bytes came */
  download(
    folder: string,
    options: Transfer & Readonly<{ from?: string; glob?: string; version?: number }> = {},
  ): Promise<Readonly<{ files: number; bytes: number }>> {
    return downloadFolder(this, folder, options);
  }

  diff(options: Options & Readonly<{ from?: number; to?: number; glob?: string }> = {}): AsyncIterable<FileChange> {
    const { from, to, glob } = options;
    return this.#pages<FileDiff, FileChange>('diff', { from, to, glob }, options);
  }

  /** As `git apply` takes it. */
  async patch({
    from,
    to,
    glob,
    signal,
  }: Options & Readonly<{ from?: number; to?: number; glob?: string }> = {}): Promise<string> {
    return (await this.ask('GET', 'diff', { query: { from, to, glob, format: 'patch' }, signal })).body.toString(
      'utf8',
    );
  }

  /** The newest first. */
  async versions(options: Options & Readonly<{ path?: string; limit?: number }> = {}): Promise<readonly VersionInfo[]> {
    const all: VersionInfo[] = [];
    const { limit = Number.POSITIVE_INFINITY, path, signal } = options;
    let next: string | undefined;
    do {
      const query = { path, limit: Math.min(1_000, limit - all.length), continue: next };
      const page = jsonOf<VersionList>(await this.ask('GET', 'versions', { query, signal }));
      all.push(...page.items);
      next = page.metadata.continue;
    } while (next !== undefined && all.length < limit);
    return all;
  }

  /** The tree, or what the globs name of it, becomes what it was at `version`, as a new version. */
  async restore(
    request: Readonly<{ version: number; paths?: readonly string[]; dryRun?: boolean }>,
    options: Options = {},
  ): Promise<WriteResult> {
    return jsonOf<WriteResult>(
      await this.ask('POST', 'restore', { body: JSON.stringify(request), ...signalOf(options) }),
    );
  }

  /** As one tar, in order; of the head alone without its history. Goes on by itself after a cut. */
  async *exportStream(
    options: Transfer & Readonly<{ headOnly?: boolean; version?: number }> = {},
  ): AsyncIterable<Buffer> {
    const { headOnly, signal, onProgress } = options;
    let version = options.version;
    let seq: number | undefined;
    let state: string | undefined;
    let size = Number.POSITIVE_INFINITY;
    for (let offset = 0; offset < size;) {
      const query = { headOnly, version, seq, state, offset };
      const { headers, body } = await this.ask('GET', 'export', { query, signal });
      // The first part pins the rest.
      version ??= Number(headers[HEADERS.version]);
      seq ??= Number(headers[HEADERS.seq]);
      state ??= String(headers[HEADERS.state]);
      const whole = Number(headers[HEADERS.size]);
      // What was sent does not belong to what follows.
      if (size !== Number.POSITIVE_INFINITY && size !== whole)
        throw new LatheError('Gone', 410, `what is in ${this.name} was thinned out during the export; export again`);
      size = whole;
      offset += body.length;
      onProgress?.({ doneBytes: offset, totalBytes: size, doneFiles: 0 });
      yield body;
    }
  }

  /** An export, into this workspace, which must be empty; `headOnly`: without the history that it may have. */
  async import(
    content: Content,
    options: Transfer & Readonly<{ dryRun?: boolean; headOnly?: boolean }> = {},
  ): Promise<ImportResult> {
    const { dryRun, headOnly, signal, onProgress } = options;
    const upload = jsonOf<Upload>(await this.ask('POST', 'import', { query: { uploads: true }, signal }));
    let offset = 0;
    for await (const body of partsOf(content)) {
      await this.ask('PUT', 'import', { query: { upload: upload.id, offset }, body, signal });
      offset += body.length;
      onProgress?.({ doneBytes: offset, doneFiles: 0 });
    }
    for (;;) {
      const query = { upload: upload.id, dryRun, headOnly };
      const result = jsonOf<ImportResult>(await this.ask('POST', 'import', { query, signal }));
      if (result.complete) return result;
    }
  }

  async *#pages<Page extends Readonly<{ metadata: Readonly<{ continue?: string }>; items: readonly Item[] }>, Item>(
    subresource: string,
    query: Record<string, string | number | undefined>,
    options: Options = {},
  ): AsyncIterable<Item> {
    let next: string | undefined;
    do {
      const ask = { query: { ...query, limit: 5_000, continue: next }, ...signalOf(options) };
      const page = jsonOf<Page>(await this.ask('GET', subresource, ask));
      yield* page.items;
      next = page.metadata.continue;
    } while (next !== undefined);
  }
}

export function jsonOf<T>({ body }: Answer): T {
  return JSON.parse(body.toString('utf8')) as T;
}

function signalOf(options: Options = {}): { signal?: AbortSignal | undefined } {
  return { signal: options.signal };
}

function preconditions(ifMatch: string | undefined): Record<string, string> {
  if (ifMatch === undefined) return {};
  return ifMatch === 'absent' ? { 'if-none-match': '*' } : { 'if-match': `"${ifMatch}"` };
}

function isEmpty(error: unknown): boolean {
  return error instanceof Error && 'reason' in error && error.reason === 'RangeNotSatisfiable';
}

/** Pieces of exactly `PART_BYTES`, but for the last. */
async function* partsOf(content: Content): AsyncGenerator<Buffer, undefined> {
  if (typeof content === 'string' || content instanceof Uint8Array) {
    const bytes = Buffer.from(content as Uint8Array);
    for (let at = 0; at < bytes.length; at += PART_BYTES) yield bytes.subarray(at, at + PART_BYTES);
    return;
  }
  let held: Buffer[] = [];
  let size = 0;
  for await (const piece of content) {
    held.push(Buffer.from(piece));
    size += piece.length;
    while (size >= PART_BYTES) {
      const all = Buffer.concat(held, size);
      yield all.subarray(0, PART_BYTES);
      held = [all.subarray(PART_BYTES)];
      size -= PART_BYTES;
    }
  }
  if (size > 0) yield Buffer.concat(held, size);
}
