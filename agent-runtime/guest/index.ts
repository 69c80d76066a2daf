/** What is remembered of a tree, by folder: what did not change in a folder is shared between one look and the next. */

/** Of one path; size, times and inode say whether it has to be read again. */
export type Indexed = Readonly<{
  kind: 'regular' | 'symlink' | 'directory';
  size: number;
  /** To 0.25 µs, which is what a number holds; that a change may leave them as they were is made up for elsewhere. */
  mtimeMs: number;
  ctimeMs: number;
  ino: number;
  executable: boolean;
  /** Its 32 bytes as latin1: a Buffer of its own would take ten times as much. */
  sha256: string;
  target?: string;
}>;
export type FolderIndex = ReadonlyMap<string, Indexed>;

export class Index {
  /** By path of the folder, '' for the root. None is empty. */
  readonly #folders = new Map<string, Map<string, Indexed>>();
  #size = 0;

  get size(): number {
    return this.#size;
  }

  get folders(): ReadonlyMap<string, FolderIndex> {
    return this.#folders;
  }

  get(path: string): Indexed | undefined {
    const cut = path.lastIndexOf('/');
    return this.#folders.get(path.slice(0, cut))?.get(path.slice(cut + 1));
  }

  has(path: string): boolean {
    return this.get(path) !== undefined;
  }

  set(path: string, entry: Indexed): void {
    const cut = path.lastIndexOf('/');
    const folder = this.#folders.get(path.slice(0, cut)) ?? new Map<string, Indexed>();
    this.#folders.set(path.slice(0, cut), folder);
    this.#size -= folder.size;
    folder.set(path.slice(cut + 1), entry);
    this.#size += folder.size;
  }

  delete(path: string): void {
    const cut = path.lastIndexOf('/');
    const folder = this.#folders.get(path.slice(0, cut));
    if (folder?.delete(path.slice(cut + 1)) !== true) return;
    this.#size -= 1;
    if (folder.size === 0) this.#folders.delete(path.slice(0, cut));
  }

  /** A whole folder, in place of what was known of it. It belongs to the index from then on. */
  setFolder(path: string, folder: FolderIndex): void {
    this.#size += folder.size - (this.#folders.get(path)?.size ?? 0);
    if (folder.size === 0) this.#folders.delete(path);
    else this.#folders.set(path, folder as Map<string, Indexed>);
  }
}
