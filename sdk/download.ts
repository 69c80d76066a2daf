/** Files of a workspace into a folder of this machine; what is written there is never written through a link. */
import { randomBytes } from 'node:crypto';
import { createWriteStream } from 'node:fs';
import { lstat, mkdir, rename, rm, rmdir, symlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { extract, type Header } from 'tar-stream';
import { HEADERS } from '../proto/live/types.ts';
import { canonicalPath } from '../proto/paths.ts';
import { ConflictError, RefusedError } from './errors.ts';
import type { Transfer, Workspace } from './workspace.ts';

/** Files up to this are held, and written several at once. */
const SMALL_BYTES = 256 * 1024;
const BATCH = 64;

export async function downloadFolder(
  workspace: Workspace,
  folder: string,
  options: Transfer & Readonly<{ from?: string; glob?: string; version?: number }>,
): Promise<Readonly<{ files: number; bytes: number }>> {
  const { from = '/', glob, version, signal, onProgress } = options;
  const base = from === '/' ? '' : workspace.resolvePath(from);
  await mkdir(folder, { recursive: true });
  const made = new Set<string>();
  let files = 0;
  let bytes = 0;
  let next: string | undefined;
  do {
    const query = { version, glob, continue: next, ...(base === '' ? {} : { prefix: `${base}/` }) };
    // Whole in memory: at most 64 MiB, and a page that breaks is asked for again.
    const { headers, body } = await workspace.ask('GET', 'archive', { query, signal });
    const reader = extract();
    reader.end(body);
    const batch: Promise<void>[] = [];
    for await (const entry of reader as AsyncIterable<Entry>) {
      const { header } = entry;
      const path = pathIn(header.name).slice(base.length);
      const size = header.size ?? 0;
      if (size <= SMALL_BYTES) {
        const content = await buffer(entry);
        await folders(folder, header.type === 'directory' ? path : dirname(path), made);
        if (header.type !== 'directory') batch.push(place(folder, path, header, content));
        if (batch.length === BATCH) await Promise.all(batch.splice(0));
      } else {
        await folders(folder, dirname(path), made);
        await place(folder, path, header, entry);
      }
      files += 1;
      bytes += size;
      onProgress?.({ doneBytes: bytes, doneFiles: files });
    }
    await Promise.all(batch);
    next = headers[HEADERS.continue] as string | undefined;
  } while (next !== undefined);
  return { files, bytes };
}

function pathIn(name: string): string {
  const result = canonicalPath(name);
  if ('refused' in result)
    throw new RefusedError('PathRefused', 0, `the server sent a name that is no path: ${result.refused}`);
  return result.path;
}

type Entry = NodeJS.ReadableStream & Readonly<{ header: Header }>;

async function place(root: string, path: string, header: Header, content: Buffer | Entry): Promise<void> {
  const target = join(root, path);
  // Beside and renamed: nobody sees half a file, and what is there is replaced, not written through.
  const beside = join(dirname(target), `.lathe-${randomBytes(6).toString('hex')}`);
  try {
    const options = { flag: 'wx', mode: header.mode ?? 0o644 };
    if (header.type === 'symlink') await symlink(header.linkname ?? '', beside);
    else if (Buffer.isBuffer(content)) await writeFile(beside, content, options);
    else await pipeline(content, createWriteStream(beside, { flags: 'wx', mode: options.mode }));
    await rename(beside, target).catch(async (error: NodeJS.ErrnoException) => {
      if (error.code !== 'EISDIR' && error.code !== 'ENOTEMPTY' && error.code !== 'EEXIST') throw error;
      // An empty folder gives way; one with something in it is somebody's.
      await rmdir(target).catch(() => {
        throw new ConflictError('Conflict', 0, `${target} is a folder with files in it; move it away first`);
      });
      await rename(beside, target);
    });
  } catch (error) {
    await rm(beside, { force: true });
    throw error;
  }
}

/** Real folders all the way: one that is a link could lead anywhere. */
async function folders(root: string, path: string, made: Set<string>): Promise<void> {
  let at = root;
  for (const name of path.split('/')) {
    if (name === '' || name === '.') continue;
    at = join(at, name);
    if (made.has(at)) continue;
    const there = await lstat(at).catch((error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return undefined;
      throw error;
    });
    if (there === undefined) await mkdir(at);
    else if (!there.isDirectory())
      throw new ConflictError(
        'Conflict',
        0,
        `${at} is ${there.isSymbolicLink() ? 'a link, which is not followed' : 'a file'}; move it away first`,
      );
    made.add(at);
  }
}
