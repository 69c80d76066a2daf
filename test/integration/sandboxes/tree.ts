/** A tree as a person would write it, from the store and from a disk: what must be equal after every command. */
import { createHash } from 'node:crypto';
import { lstatSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';
import type { WorkspaceStore } from '../../../operator/store/workspace-store.ts';

export type Tree = Record<string, string>;

export async function treeOfHead(store: WorkspaceStore, workspace: string): Promise<Tree> {
  const tree: Tree = {};
  for await (const page of store.tree(workspace, undefined)) {
    for (const { path, kind, executable, target, sha256 } of page)
      tree[path] = told(kind, executable, kind === 'symlink' ? (target ?? '') : (sha256?.toString('hex') ?? ''));
  }
  return tree;
}

export function treeOnDisk(root: string): Tree {
  const tree: Tree = {};
  const walk = (folder: string) => {
    for (const name of readdirSync(join(root, folder))) {
      const path = `${folder}/${name}`;
      const stats = lstatSync(join(root, path));
      if (stats.isSymbolicLink()) tree[path] = told('symlink', false, readlinkSync(join(root, path)));
      else if (stats.isFile()) {
        const sha256 = createHash('sha256')
          .update(readFileSync(join(root, path)))
          .digest('hex');
        tree[path] = told('regular', (stats.mode & 0o111) !== 0, sha256);
      } else if (stats.isDirectory()) {
        if (readdirSync(join(root, path)).length === 0) tree[path] = told('directory', false, '');
        else walk(path);
      } else tree[path] = 'special';
    }
  };
  walk('');
  return tree;
}

function told(kind: string, executable: boolean, what: string): string {
  return `${kind}${executable ? '*' : ''} ${what}`;
}
