/** The TypeScript client of Lathe. `docs/guides/files.md` shows it at work. */
export { createLathe, type Lathe, type LatheOptions, type WorkspaceObject, type WorkspaceOptions } from './lathe.ts';
export {
  Workspace,
  type Content,
  type FileStat,
  type Options,
  type Progress,
  type Transfer,
  type WriteOptions,
} from './workspace.ts';
export { ConflictError, ForbiddenError, LatheError, NotFoundError, RefusedError, UnavailableError } from './errors.ts';
export { workspaceName } from './names.ts';
