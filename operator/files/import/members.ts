/** In which order the members of an export come, and what a name means. Order is what shows that one is missing or there twice. */
import { canonicalPath, escapeName } from '../../../proto/paths.ts';
import { PermanentError } from '../../errors.ts';
import { HEAD_STATE, HEADER, MANIFEST, PAGED, pageName, REQUESTS, STATE, type LineKind } from '../export/format.ts';
import { broken } from './broken.ts';
import type { TarMember } from './tar-reader.ts';

export type Place = Readonly<
  | { kind: 'header' | 'requests' | 'manifest' }
  | { kind: 'file'; path: string }
  | { kind: 'blob'; sha256: string }
  | { kind: 'lines'; of: LineKind }
>;

const STATE_NAMES = [...STATE.map((kind) => `${kind}.jsonl`), REQUESTS].sort();
const HEAD_NAMES = HEAD_STATE.map((kind) => `${kind}.jsonl`);

/** Call with every member, in turn. @throws PermanentError BadRequest, PathRefused */
export class Places {
  #rank = -1;
  #headOnly = false;
  /** The last of the tree, by its bytes, and of what may not be a folder too. */
  #path = Buffer.alloc(0);
  #noFolders: string[] = [];
  #sha256 = '';
  #page = 0;

  set headOnly(headOnly: boolean) {
    this.#headOnly = headOnly;
  }

  next({ header }: TarMember): Place {
    const { name, type, mode } = header;
    const place = placeOf(name, type);
    const rank = this.#rankOf(name);
    if (rank < this.#rank) throw broken(`${escapeName(name)} is not in its place, or is there twice`);
    const first = rank > this.#rank;
    for (let missed = Math.max(this.#rank, 0) + (this.#rank < 0 ? 0 : 1); missed < rank; missed += 1)
      if (this.#isNeeded(missed)) throw broken(`${this.#nameOf(missed)} is missing before ${escapeName(name)}`);
    this.#rank = rank;
    if (place.kind !== 'file' && (type !== 'file' || mode !== 0o644))
      throw broken(`${escapeName(name)} is no plain file`);
    if (place.kind === 'file') this.#inTree(place.path, header.type, mode);
    else if (place.kind === 'blob') {
      if (place.sha256 <= this.#sha256) throw broken(`${name} is not in its place, or is there twice`);
      this.#sha256 = place.sha256;
    } else if (name.includes('/')) {
      this.#page = first ? 1 : this.#page + 1;
      if (name !== pageName(name.slice(0, name.indexOf('/')), this.#page)) throw broken(`${name} is not the next page`);
    } else if (!first) throw broken(`${name} is there twice`);
    return place;
  }

  /** In order of bytes, and nothing below what is no folder. */
  #inTree(path: string, type: TarMember['header']['type'], mode: number): void {
    if (mode !== (type === 'symlink' ? 0o777 : type === 'directory' ? 0o755 : mode & 0o111 ? 0o755 : 0o644))
      throw broken(`${escapeName(path)} has the mode ${mode.toString(8)}`);
    const bytes = Buffer.from(path);
    if (bytes.compare(this.#path) <= 0) throw broken(`${escapeName(path)} is not in its place, or is there twice`);
    this.#path = bytes;
    // What is below `/a` comes before `/a0`: these are nested, the innermost last.
    while (this.#noFolders.length > 0 && bytes.compare(Buffer.from(`${this.#noFolders.at(-1) ?? ''}0`)) >= 0)
      this.#noFolders.pop();
    const above = this.#noFolders.find((one) => path.startsWith(`${one}/`));
    if (above !== undefined) throw broken(`${escapeName(path)} is below ${escapeName(above)}, which is no folder`);
    if (type !== 'directory') this.#noFolders.push(path);
  }

  #names(): readonly string[] {
    return [
      HEADER,
      'files/',
      'blobs/',
      ...PAGED.map((folder) => `${folder}/`),
      ...(this.#headOnly ? HEAD_NAMES : STATE_NAMES),
      MANIFEST,
    ];
  }

  #nameOf(rank: number): string {
    return this.#names()[rank] ?? '';
  }

  #isNeeded(rank: number): boolean {
    return !this.#nameOf(rank).endsWith('/');
  }

  #rankOf(name: string): number {
    const rank = this.#names().findIndex((known) => (known.endsWith('/') ? name.startsWith(known) : name === known));
    const paged = rank >= 2 && rank < 3 + PAGED.length;
    if (rank === -1 || (paged && this.#headOnly)) throw broken(`${escapeName(name)} is nothing that an export has`);
    if (this.#rank === -1 && rank !== 0) throw broken(`it does not begin with ${HEADER}`);
    return rank;
  }
}

function placeOf(name: string, type: TarMember['header']['type']): Place {
  if (name === HEADER) return { kind: 'header' };
  if (name === MANIFEST) return { kind: 'manifest' };
  if (name === REQUESTS) return { kind: 'requests' };
  if (name.startsWith('files/')) {
    const isFolder = type === 'directory';
    const path = name.slice('files'.length, isFolder ? -1 : undefined);
    const result = canonicalPath(path);
    if ('refused' in result) throw new PermanentError('PathRefused', `the export can't be taken: ${result.refused}`);
    if (result.path !== path || isFolder !== name.endsWith('/'))
      throw new PermanentError(
        'PathRefused',
        `the export can't be taken: path ${escapeName(path)} is not in its one form`,
      );
    return { kind: 'file', path };
  }
  const sha256 = /^blobs\/([0-9a-f]{64})$/.exec(name)?.[1];
  if (sha256 !== undefined) return { kind: 'blob', sha256 };
  const [, folder, single] =
    /^(?:(history|versions|events)\/\d{6,}|(executions|kv|sessions|turns))\.jsonl$/.exec(name) ?? [];
  const of = folder ?? single;
  if (of === undefined) throw broken(`${escapeName(name)} is nothing that an export has`);
  return { kind: 'lines', of: of as LineKind };
}
