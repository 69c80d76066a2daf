/** One server and one migrated template for all integration files; each file clones a database of its own. */
import type { TestProject } from 'vitest/node';
import { migrate } from '../../operator/store/migrate.ts';
import { admin, startPostgres, urlOf } from './postgres.ts';

declare module 'vitest' {
  interface ProvidedContext {
    postgres: string;
  }
}

export const TEMPLATE = 'lathe_template';

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const postgres = await startPostgres();
  await admin(postgres.url, `CREATE DATABASE ${TEMPLATE}`);
  await migrate(urlOf(postgres.url, TEMPLATE), { say: () => undefined }, AbortSignal.timeout(60_000));
  project.provide('postgres', postgres.url);
  return async () => await postgres[Symbol.asyncDispose]();
}
