/** Folders of the tree that are being written into, kept open: files come in the order of their folders. */
import { findFolder, makeFolder, openRoot, type Folder } from './folders.ts';
import type { Index } from './index.ts';
import { stagingFolder } from './staging.ts';

export type Places = Disposable &
  Readonly<{
    root: Folder;
    /** Where files are written before they have their names. */
    staging(): Folder;
    /** The folder of a path's segments; undefined when there is none. It stays open until another is asked for. */
    find(segments: readonly string[]): Folder | undefined;
    /** The same, made where it is missing; it is then no entry of its own. */
    make(segments: readonly string[]): Folder;
    /** Something was removed: what is open may be what is gone. */
    forget(): void;
  }>;

export function openPlaces(rootPath: string, index: Index): Places {
  const root = openRoot(rootPath);
  let staging: Folder | undefined;
  let open: Readonly<{ path: string; folder: Folder; made: boolean }> | undefined;
  const forget = () => {
    open?.folder[Symbol.dispose]();
    open = undefined;
  };
  const keep = (path: string, folder: Folder | undefined, made: boolean) => {
    forget();
    if (folder !== undefined) open = { path, folder, made };
    return folder;
  };
  const pathOf = (segments: readonly string[]) => segments.slice(0, -1).join('/');
  return {
    root,
    staging: () => (staging ??= stagingFolder(root)),
    find: (segments) => {
      const path = pathOf(segments);
      return open?.path === path ? open.folder : keep(path, findFolder(root, segments.slice(0, -1)), false);
    },
    make: (segments) => {
      const path = pathOf(segments);
      if (open?.path === path && open.made) return open.folder;
      for (let i = 1; i < segments.length; i += 1) index.delete(`/${segments.slice(0, i).join('/')}`);
      if (open?.path === path) {
        // Whoever found it goes on with it.
        open = { ...open, made: true };
        return open.folder;
      }
      const folder = makeFolder(root, segments.slice(0, -1));
      keep(path, folder, true);
      return folder;
    },
    forget,
    [Symbol.dispose]: () => {
      forget();
      staging?.[Symbol.dispose]();
      root[Symbol.dispose]();
    },
  };
}
