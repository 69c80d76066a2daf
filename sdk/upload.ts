/** A folder of this machine into a workspace: small files together, large ones in parts. */
import { createReadStream } from 'node:fs';
import { lstat, readdir, readFile, readlink } from 'node:fs/promises';
import { join } from 'node:path';
import { pack } from 'tar-stream';
import { PART_BYTES, type WriteResult } from '../proto/live/types.ts';
import { compileGlobs } from '../proto/globs.ts';
import { jsonOf, type Transfer, type Workspace } from './workspace.ts';

/** Files of more go by themselves. */
const ALONE_BYTES = 4 * 1024 * 1024;

export type TarEntry = Readonly<
  | { path: string; content: Buffer; executable?: boolean }
  | { path: string; target: string }
  | { path: string; folder: true }
>;
type Found = Readonly<{
  path: string;
  file: string;
  kind: 'file' | 'link' | 'folder';
  size: number;
  executable: boolean;
}>;

export async function uploadFolder(
  workspace: Workspace,
  folder: string,
  options: Transfer & Readonly<{ to?: string; ignore?: readonly string[]; dryRun?: boolean }>,
): Promise<readonly WriteResult[]> {
  const { to = '/', ignore = [], dryRun, signal, onProgress } = options;
  const prefix = to === '/' ? '' : workspace.resolvePath(to);
  const found = await walk(folder, compileGlobs(ignore));
  const totals = { totalBytes: found.reduce((sum, f) => sum + f.size, 0), totalFiles: found.length };
  const results: WriteResult[] = [];
  let doneBytes = 0;
  let doneFiles = 0;
  const tell = () => onProgress?.({ doneBytes, doneFiles, ...totals });
  let batch: Found[] = [];
  let bytes = 0;
  const flush = async () => {
    if (batch.length === 0) return;
    const body = await tarOf(await Promise.all(batch.map(entryOf)));
    const query = { dryRun, ...(prefix === '' ? {} : { prefix }) };
    results.push(jsonOf<WriteResult>(await workspace.ask('PUT', 'archive', { query, body, signal })));
    doneFiles += batch.length;
    doneBytes += batch.reduce((sum, f) => sum + f.size, 0);
    batch = [];
    bytes = 0;
    tell();
  };
  for (const item of found) {
    signal?.throwIfAborted();
    if (item.kind === 'file' && item.size > ALONE_BYTES) {
      const { path, file, executable } = item;
      const stream = createReadStream(file, { highWaterMark: 1024 * 1024 }) as AsyncIterable<Buffer>;
      const before = doneBytes;
      results.push(
        await workspace.write(`${prefix}${path}`, stream, {
          executable,
          ...(dryRun === undefined ? {} : { dryRun }),
          ...(signal === undefined ? {} : { signal }),
          onProgress: (part) => {
            doneBytes = before + part.doneBytes;
            tell();
          },
        }),
      );
      doneBytes = before + item.size;
      doneFiles += 1;
      tell();
      continue;
    }
    // Name, header and padding of the tar count too.
    const size = item.size + 2_048 + item.path.length;
    if (bytes + size > PART_BYTES) await flush();
    batch.push(item);
    bytes += size;
  }
  await flush();
  return results;
}

/** Of entries that fit in memory together. */
export function tarOf(entries: readonly TarEntry[]): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const tar = pack();
    const pieces: Buffer[] = [];
    tar.on('data', (piece: unknown) => pieces.push(piece as Buffer));
    tar.on('end', () => resolve(Buffer.concat(pieces)));
    tar.on('error', reject);
    for (const entry of entries) {
      const header = { name: entry.path.slice(1), mtime: new Date(0) };
      if ('target' in entry) tar.entry({ ...header, type: 'symlink', linkname: entry.target });
      else if ('folder' in entry) tar.entry({ ...header, name: `${header.name}/`, type: 'directory' });
      else tar.entry({ ...header, mode: entry.executable === true ? 0o755 : 0o644 }, entry.content);
    }
    tar.finalize();
  });
}

async function entryOf({ path, file, kind, executable }: Found): Promise<TarEntry> {
  if (kind === 'folder') return { path, folder: true };
  if (kind === 'link') return { path, target: await readlink(file) };
  return { path, content: await readFile(file), executable };
}

/** In order of name. Links are not followed, special files are passed over. */
async function walk(folder: string, isIgnored: (path: string) => boolean, at = ''): Promise<Found[]> {
  const found: Found[] = [];
  const names = (await readdir(join(folder, at))).sort();
  for (const name of names) {
    const path = `${at}/${name}`;
    const file = join(folder, path);
    const info = await lstat(file);
    if (isIgnored(info.isDirectory() ? `${path}/` : path)) continue;
    const executable = (info.mode & 0o111) !== 0;
    if (info.isSymbolicLink()) found.push({ path, file, kind: 'link', size: 0, executable: false });
    else if (info.isFile()) found.push({ path, file, kind: 'file', size: info.size, executable });
    else if (info.isDirectory()) {
      const inside = await walk(folder, isIgnored, path);
      if (inside.length === 0) found.push({ path, file, kind: 'folder', size: 0, executable: false });
      found.push(...inside);
    }
  }
  return found;
}
