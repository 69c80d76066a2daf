/** Archives as nobody's tool would make them, and a server that hands them out. Nothing is written to a disk. */
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { crc32, deflateRawSync, gzipSync } from 'node:zlib';
import { pack, type Header } from 'tar-stream';

export type TarEntry = Partial<Header> & Readonly<{ name: string; content?: Buffer }>;
export type ZipEntry = Readonly<{
  name: string | Buffer;
  content?: Buffer;
  /** With the kind of file, as Unix has it. Absent: a zip of a system that keeps none. */
  mode?: number;
  /** What the directory claims. */
  claimedSize?: number;
  stored?: boolean;
}>;

export async function tarOf(entries: readonly TarEntry[]): Promise<Buffer> {
  const archive = pack();
  for (const { content = Buffer.alloc(0), ...header } of entries)
    archive.entry({ ...header, size: content.length } as Header, content);
  archive.finalize();
  return await buffer(archive as unknown as NodeJS.ReadableStream);
}

export async function tarGzOf(entries: readonly TarEntry[]): Promise<Buffer> {
  return gzipSync(await tarOf(entries));
}

export function zipOf(entries: readonly ZipEntry[]): Buffer {
  const parts: Buffer[] = [];
  const directory: Buffer[] = [];
  let offset = 0;
  for (const { name, content = Buffer.alloc(0), mode, claimedSize = content.length, stored = false } of entries) {
    const bytes = typeof name === 'string' ? Buffer.from(name) : name;
    const data = stored ? content : deflateRawSync(content);
    const common = Buffer.alloc(26);
    common.writeUInt16LE(20, 0);
    common.writeUInt16LE(0x800, 2);
    common.writeUInt16LE(stored ? 0 : 8, 4);
    common.writeUInt32LE(crc32(content), 10);
    common.writeUInt32LE(data.length, 14);
    common.writeUInt32LE(claimedSize, 18);
    common.writeUInt16LE(bytes.length, 22);
    const local = Buffer.concat([Buffer.from('PK\x03\x04', 'latin1'), common, bytes, data]);
    const attributes = Buffer.alloc(14);
    attributes.writeUInt32LE(((mode ?? 0) << 16) >>> 0, 6);
    attributes.writeUInt32LE(offset, 10);
    directory.push(
      Buffer.concat([
        Buffer.from('PK\x01\x02', 'latin1'),
        Buffer.from([20, mode === undefined ? 0 : 3]),
        common,
        attributes,
        bytes,
      ]),
    );
    parts.push(local);
    offset += local.length;
  }
  const listed = Buffer.concat(directory);
  const end = Buffer.alloc(22);
  end.write('PK\x05\x06', 0, 'latin1');
  end.writeUInt16LE(entries.length, 8);
  end.writeUInt16LE(entries.length, 10);
  end.writeUInt32LE(listed.length, 12);
  end.writeUInt32LE(offset, 16);
  return Buffer.concat([...parts, listed, end]);
}

export type ArchiveServer = AsyncDisposable &
  Readonly<{
    port: number;
    asked: readonly string[];
    /** What a path answers with. A number: that status. A string: a redirect to it. `breaksAfter`: bytes, then the socket goes. */
    serve(path: string, answer: Buffer | number | string, breaksAfter?: number): void;
  }>;

export async function startArchiveServer(): Promise<ArchiveServer> {
  const answers = new Map<string, { answer: Buffer | number | string; breaksAfter?: number }>();
  const asked: string[] = [];
  const server: Server = createServer((request, response) => {
    const path = request.url ?? '/';
    asked.push(path);
    const { answer, breaksAfter } = answers.get(path) ?? { answer: 404 };
    if (typeof answer === 'number') response.writeHead(answer).end();
    else if (typeof answer === 'string') response.writeHead(302, { location: answer }).end();
    else if (breaksAfter === undefined) response.writeHead(200, { 'content-length': answer.length }).end(answer);
    else {
      response.writeHead(200, { 'content-length': answer.length });
      response.write(answer.subarray(0, breaksAfter), () => response.destroy());
    }
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    asked,
    serve: (path, answer, breaksAfter) =>
      answers.set(path, { answer, ...(breaksAfter === undefined ? {} : { breaksAfter }) }),
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
