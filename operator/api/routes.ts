/** One line per request that the API knows: method and subresource to RBAC verb and handler. */
import { API_VERSION } from '../../proto/live/types.ts';
import { PermanentError } from '../errors.ts';
import { getArchive, putArchive } from './archive.ts';
import type { Handler } from './call.ts';
import { SUBRESOURCES, type Subresource } from './discovery.ts';
import { deleteFiles, getFiles, postFiles, putFiles } from './files.ts';
import { getDiff, getLog, getVersions, postRestore } from './history.ts';
import { getExport, postImport, putImport } from './transfer.ts';
import { deleteKv, getKv, putKv } from './kv.ts';

type Verb = 'get' | 'create' | 'update' | 'delete';
const VERBS: Readonly<Record<string, Verb>> = {
  GET: 'get',
  HEAD: 'get',
  POST: 'create',
  PUT: 'update',
  DELETE: 'delete',
};
const HANDLERS: Readonly<Record<Subresource, Readonly<Partial<Record<Verb, Handler>>>>> = {
  files: { get: getFiles, create: postFiles, update: putFiles, delete: deleteFiles },
  archive: { get: getArchive, update: putArchive },
  versions: { get: getVersions },
  diff: { get: getDiff },
  restore: { create: postRestore },
  export: { get: getExport },
  import: { create: postImport, update: putImport },
  kv: { get: getKv, update: putKv, delete: deleteKv },
  log: { get: getLog },
};

export type Route = Readonly<{
  namespace: string;
  name: string;
  subresource: Subresource;
  verb: Verb;
  handler: Handler;
}>;

const PATH = new RegExp(`^/apis/${API_VERSION}/namespaces/([^/]+)/workspaces/([^/]+)/([^/]+)$`);

/** @param path of the URL, without the query. @throws PermanentError NotFound, MethodNotAllowed */
export function routeOf(method: string, path: string): Route {
  const [, namespace = '', name = '', subresource = ''] = PATH.exec(path) ?? [];
  if (!isSubresource(subresource))
    throw new PermanentError('NotFound', `there is no such path; docs/reference/live-api.md has them all`);
  const verb = VERBS[method];
  const handler = verb === undefined ? undefined : HANDLERS[subresource][verb];
  if (verb === undefined || handler === undefined)
    throw new PermanentError(
      'MethodNotAllowed',
      `workspaces/${subresource} knows ${SUBRESOURCES[subresource].join(', ')}`,
    );
  return { namespace: plain(namespace), name: plain(name), subresource, verb, handler };
}

function isSubresource(name: string): name is Subresource {
  return Object.hasOwn(HANDLERS, name);
}

/** Names of Kubernetes need no encoding; what is encoded is none. */
function plain(name: string): string {
  if (!/^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$/.test(name) || name.length > 253)
    throw new PermanentError('NotFound', 'that is no name of a namespace or Workspace');
  return name;
}
