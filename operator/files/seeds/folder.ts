/** A folder on our disk into a tree: names as bytes, links as links, nothing followed. */
import { constants } from 'node:fs';
import { lstat, open, opendir, readlink, type FileHandle } from 'node:fs/promises';
import { escapeName } from '../../../proto/paths.ts';
import { PermanentError } from '../../errors.ts';
import type { SeedTree } from './tree.ts';

const READ_BYTES = 256 * 1024;

export async function seedFromFolder(root: string, tree: SeedTree, signal: AbortSignal): Promise<void> {
  await walk(Buffer.from(root), Buffer.alloc(0));

  async function walk(folder: Buffer, within: Buffer): Promise<void> {
    // `buffer`: a name that is not UTF-8 is refused as what it is.
    for await (const entry of await opendir(folder, { encoding: 'buffer' as BufferEncoding })) {
      signal.throwIfAborted();
      const name = entry.name as unknown as Buffer;
      const path = Buffer.concat([folder, Buffer.from('/'), name]);
      const named = Buffer.concat([within, Buffer.from('/'), name]);
      const stat = await lstat(path);
      if (stat.isDirectory()) {
        tree.directory(named);
        await walk(path, named);
      } else if (stat.isSymbolicLink()) {
        tree.symlink(named, await readlink(path, { encoding: 'buffer' }));
      } else if (stat.isFile()) {
        await using file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW);
        await tree.file(named, (stat.mode & 0o111) !== 0, stat.size, contentOf(file));
      } else {
        throw new PermanentError('PathRefused', `${escapeName(named)} is no file, folder or link`);
      }
    }
  }
}

async function* contentOf(file: FileHandle): AsyncIterable<Buffer> {
  for (;;) {
    const { bytesRead, buffer } = await file.read({ buffer: Buffer.allocUnsafe(READ_BYTES) });
    if (bytesRead === 0) return;
    yield buffer.subarray(0, bytesRead);
  }
}

/** Bytes and entries below a folder; what goes away meanwhile does not count. Stops counting past `most`. */
export async function sizeOf(folder: string, most: number): Promise<{ bytes: number; entries: number }> {
  let bytes = 0;
  let entries = 0;
  const waiting = [folder];
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    const dir = await opendir(next).catch(() => undefined);
    if (dir === undefined) continue;
    for await (const entry of dir) {
      entries += 1;
      const path = `${next}/${entry.name}`;
      if (entry.isDirectory()) waiting.push(path);
      else bytes += (await lstat(path).catch(() => undefined))?.size ?? 0;
      if (entries > most) return { bytes, entries };
    }
  }
  return { bytes, entries };
}
