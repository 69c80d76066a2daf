import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmod, mkdir, readdir, readFile, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { tagOf, writeArchive } from './archive.ts';
import { cachedLayer, keyOf, layerOf, tarOf, withFolder } from './layers.ts';

const signal = AbortSignal.timeout(30_000);
const sha256 = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');
const workshopIn = (cache: string) => ({ cache, say: () => undefined });

describe('a layer', () => {
  test('is the same for the same files, whenever they were written and whatever the umask was', () =>
    withFolder(async (folder) => {
      const make = async (name: string, mode: number, at: Date): Promise<Buffer> => {
        const root = join(folder, name);
        await mkdir(join(root, 'bin'), { recursive: true });
        await writeFile(join(root, 'bin/tool'), '#!/bin/sh\n');
        await chmod(join(root, 'bin/tool'), mode);
        await chmod(join(root, 'bin'), mode);
        await utimes(join(root, 'bin/tool'), at, at);
        await tarOf(root, join(folder, `${name}.tar`), signal);
        return await readFile(join(folder, `${name}.tar`));
      };
      const open = await make('open', 0o777, new Date(0));
      const closed = await make('closed', 0o700, new Date(86_400_000));
      expect(sha256(closed)).toBe(sha256(open));
    }));

  test('that two want at the same time is kept once, and made no more after', () =>
    withFolder(async (cache) => {
      let made = 0;
      const want = () =>
        cachedLayer(workshopIn(cache), 'thing-1', async (path) => {
          made += 1;
          await writeFile(path, 'content');
        });
      const both = await Promise.all([want(), want()]);
      const madeByBoth = made;
      const later = await want();
      expect(both).toEqual([later, later]);
      expect(made).toBe(madeByBoth);
      expect(later.sha256).toBe(sha256(Buffer.from('content')));
      expect(await readdir(join(cache, 'layers'))).toEqual(['thing-1']);
    }));

  test('that broke while it was made leaves nothing behind', () =>
    withFolder(async (cache) => {
      const broken = cachedLayer(workshopIn(cache), 'thing-1', async (path) => {
        await writeFile(path, 'half');
        throw new Error('the disk is full');
      });
      await expect(broken).rejects.toThrow('the disk is full');
      expect(await readdir(join(cache, 'layers'))).toEqual([]);
    }));

  test('has another key when a word, a file or the border between them differs', () =>
    withFolder(async (folder) => {
      const write = async (name: string, text: string) => {
        await writeFile(join(folder, name), text);
        return join(folder, name);
      };
      const files = [await write('a', 'one'), await write('b', 'two')];
      const shifted = [await write('c', 'onet'), await write('d', 'wo')];
      const keys = [
        await keyOf('x', ['a', 'b'], files),
        await keyOf('x', ['ab'], files),
        await keyOf('x', ['a', 'b'], shifted),
        await keyOf('x', ['a', 'b'], files.toReversed()),
        await keyOf('x', ['a', 'b']),
      ];
      expect(new Set(keys).size).toBe(keys.length);
    }));
});

describe('an archive', () => {
  test('holds the layers in order under their digests, and its name', () =>
    withFolder(async (folder) => {
      const workshop = workshopIn(join(folder, 'cache'));
      const layers = await Promise.all(
        ['lower', 'upper'].map((name) =>
          layerOf(workshop, `${name}-1`, (root) => writeFile(join(root, name), name), signal),
        ),
      );
      const path = join(folder, 'archives', 'image.tar');
      await writeArchive(path, 'lathe.dev/thing:1', layers, { User: '65532:65532' }, signal);

      const member = (name: string) => execFileSync('tar', ['-xOf', path, name]);
      const [manifest] = JSON.parse(member('manifest.json').toString()) as [
        { Config: string; RepoTags: string[]; Layers: string[] },
      ];
      const config = JSON.parse(member(manifest.Config).toString()) as {
        config: { User: string };
        rootfs: { diff_ids: string[] };
      };
      expect(manifest.RepoTags).toEqual(['lathe.dev/thing:1']);
      expect(config.config.User).toBe('65532:65532');
      expect(config.rootfs.diff_ids).toEqual(manifest.Layers.map((name) => `sha256:${sha256(member(name))}`));
      expect(config.rootfs.diff_ids).toEqual(layers.map((layer) => `sha256:${layer.sha256}`));
      expect(await readdir(join(folder, 'archives'))).toEqual(['image.tar']);
    }));

  test('has a tag of its content: another layer, another order or another user is another tag', () => {
    const [a, b] = [
      { path: '/here/a', sha256: 'a'.repeat(64) },
      { path: '/here/b', sha256: 'b'.repeat(64) },
    ];
    const elsewhere = [a, b].map((layer) => ({ ...layer, path: `/elsewhere${layer.path}` }));
    expect(tagOf(elsewhere, {})).toBe(tagOf([a, b], {}));
    expect(new Set([tagOf([a, b], {}), tagOf([b, a], {}), tagOf([a], {}), tagOf([a, b], { User: '1' })]).size).toBe(4);
  });
});
