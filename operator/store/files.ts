/** The tree of a workspace, at the head and at any version. */
import type { Database } from './database.ts';
import type { FileEntry } from './rows.ts';
import type { Ground, WorkspaceStore } from './workspace-store.ts';

const PAGE = 2_000;
/** The folders above a path, the root not among them. */
export function above(path: string): readonly string[] {
  const folders: string[] = [];
  for (let end = path.lastIndexOf('/'); end > 0; end = path.lastIndexOf('/', end - 1)) folders.push(path.slice(0, end));
  return folders;
}

const COLUMNS = 'path, version, kind, executable, size, sha256, target';

export function parentOf(path: string): string {
  return path.slice(0, Math.max(path.lastIndexOf('/'), 0));
}

export function fileQueries(
  db: Database,
): Pick<
  WorkspaceStore,
  'tree' | 'head' | 'ground' | 'below' | 'emptied' | 'entriesAt' | 'changesBetween' | 'knownHashes'
> {
  return {
    tree: async function* (workspace, version, signal) {
      for (let after = ''; ;) {
        const page =
          version === undefined
            ? await db.query<FileEntry>(
                'tree-head',
                `SELECT ${COLUMNS} FROM file WHERE workspace = $1 AND path > $2 COLLATE "C" ORDER BY path LIMIT ${PAGE}`,
                [workspace, after],
                signal,
              )
            : await db.query<FileEntry>(
                'tree-version',
                `SELECT ${COLUMNS} FROM (
                   SELECT DISTINCT ON (path) ${COLUMNS} FROM file_version WHERE workspace = $1 AND version <= $3 AND path > $2 COLLATE "C"
                   ORDER BY path, version DESC) latest
                 WHERE kind <> 'deleted' ORDER BY path LIMIT ${PAGE}`,
                [workspace, after, version],
                signal,
              );
        const last = page.at(-1);
        if (last === undefined) return;
        yield page;
        if (page.length < PAGE) return;
        after = last.path;
      }
    },
    head: async (workspace, signal) => {
      const [row] = await db.query<{ head: bigint; files: bigint; bytes: bigint }>(
        'head',
        'SELECT head, files, bytes FROM workspace WHERE id = $1',
        [workspace],
        signal,
      );
      return row ?? { head: 0n, files: 0n, bytes: 0n };
    },
    ground: async (workspace, paths, signal) => {
      const rows = await db.query<Ground & FileEntry & { what: 'head' | 'entry' | 'folder' }>(
        'ground',
        `SELECT 'head' AS what, head, files, bytes, ${COLUMNS.replaceAll(/\w+/g, 'NULL AS $&')} FROM workspace WHERE id = $1
         UNION ALL SELECT 'entry', NULL, NULL, NULL, ${COLUMNS} FROM unnest($2::text[]) p
           CROSS JOIN LATERAL (SELECT ${COLUMNS} FROM file WHERE workspace = $1 AND path = p COLLATE "C" LIMIT 1) f
         UNION ALL SELECT 'folder', NULL, NULL, NULL, p, NULL, NULL, NULL, NULL, NULL, NULL FROM unnest($3::text[]) p
           CROSS JOIN LATERAL (SELECT FROM file f WHERE f.workspace = $1 AND f.path > p || '/' AND f.path < p || '0' LIMIT 1) f`,
        [workspace, [...new Set(paths.flatMap((path) => [path, ...above(path)]))], paths],
        signal,
      );
      const { head = 0n, files = 0n, bytes = 0n } = rows.find((row) => row.what === 'head') ?? {};
      return {
        head,
        files,
        bytes,
        entries: new Map(rows.filter((row) => row.what === 'entry').map((row) => [row.path, row])),
        folders: new Set(rows.filter((row) => row.what === 'folder').map((row) => row.path)),
      };
    },
    below: (workspace, folder, limit, signal) =>
      db.query<FileEntry>(
        'below',
        `SELECT ${COLUMNS} FROM file WHERE workspace = $1 AND path > $2 COLLATE "C" AND path < $3 COLLATE "C" ORDER BY path LIMIT $4`,
        [workspace, `${folder}/`, `${folder}0`, limit],
        signal,
      ),
    emptied: async (workspace, folders, except, signal) => {
      if (folders.length === 0) return [];
      const rows = await db.query<{ path: string }>(
        'emptied',
        `WITH gone AS MATERIALIZED (SELECT unnest($3::text[]) COLLATE "C" AS path)
         SELECT p AS path FROM unnest($2::text[]) p WHERE NOT EXISTS (
           SELECT 1 FROM file f WHERE f.workspace = $1 AND f.path > p || '/' AND f.path < p || '0'
             AND NOT EXISTS (SELECT 1 FROM gone g WHERE g.path = f.path))`,
        [workspace, folders, except],
        signal,
      );
      return rows.map((row) => row.path);
    },
    entriesAt: async (workspace, paths, version, signal) => {
      if (paths.length === 0) return new Map();
      const rows = await db.query<FileEntry & { kind: string }>(
        'entries-at',
        `SELECT ${COLUMNS} FROM unnest($2::text[]) p CROSS JOIN LATERAL (
           SELECT ${COLUMNS} FROM file_version WHERE workspace = $1 AND path = p COLLATE "C" AND version <= $3
           ORDER BY version DESC LIMIT 1) v`,
        [workspace, paths, version],
        signal,
      );
      return new Map(rows.filter((row) => (row.kind as string) !== 'deleted').map((row) => [row.path, row]));
    },
    changesBetween: async (workspace, from, to, signal) => {
      const rows = await db.query<FileEntry & { side: 'before' | 'after' }>(
        'changes-between',
        `WITH touched AS (
           SELECT DISTINCT path FROM file_version WHERE workspace = $1 AND version > LEAST($2::bigint, $3) AND version <= GREATEST($2::bigint, $3)
         ), sides AS (SELECT 'before' AS side, $2::bigint AS at UNION ALL SELECT 'after', $3)
         SELECT s.side, v.* FROM touched t CROSS JOIN sides s CROSS JOIN LATERAL (
           SELECT ${COLUMNS} FROM file_version f WHERE f.workspace = $1 AND f.path = t.path AND f.version <= s.at ORDER BY f.version DESC LIMIT 1
         ) v WHERE v.kind::text <> 'deleted' ORDER BY v.path, s.side`,
        [workspace, from, to],
        signal,
      );
      const byPath = new Map<string, { path: string; before?: FileEntry; after?: FileEntry }>();
      for (const { side, ...entry } of rows) {
        const found = byPath.get(entry.path) ?? { path: entry.path };
        found[side] = entry;
        byPath.set(entry.path, found);
      }
      return [...byPath.values()].filter(({ before, after }) => before?.version !== after?.version);
    },
    knownHashes: async (workspace, sha256, signal) => {
      if (sha256.length === 0) return new Set();
      const rows = await db.query<{ sha256: Buffer }>(
        'known-hashes',
        `SELECT v.sha256 FROM unnest($2::bytea[]) h
         CROSS JOIN LATERAL (SELECT sha256 FROM file_version WHERE workspace = $1 AND sha256 = h LIMIT 1) v`,
        [workspace, sha256],
        signal,
      );
      return new Set(rows.map((row) => row.sha256.toString('hex')));
    },
  };
}
