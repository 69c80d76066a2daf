/** The tree of a workspace, at the head and at any version. */
import type { Database } from './database.ts';
import type { FileEntry } from './rows.ts';
import type { WorkspaceStore } from './workspace-store.ts';

const PAGE = 2_000;
const COLUMNS = 'path, version, kind, executable, size, sha256, target';

export function fileQueries(
  db: Database,
): Pick<WorkspaceStore, 'tree' | 'head' | 'entriesAt' | 'changesBetween' | 'knownHashes'> {
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
    entriesAt: async (workspace, paths, version, signal) => {
      if (paths.length === 0) return new Map();
      const rows = await db.query<FileEntry & { kind: string }>(
        'entries-at',
        `SELECT DISTINCT ON (path) ${COLUMNS} FROM file_version WHERE workspace = $1 AND path = ANY($2::text[]) AND version <= $3
         ORDER BY path, version DESC`,
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
        'SELECT DISTINCT sha256 FROM file_version WHERE workspace = $1 AND sha256 = ANY($2::bytea[])',
        [workspace, sha256],
        signal,
      );
      return new Set(rows.map((row) => row.sha256.toString('hex')));
    },
  };
}
