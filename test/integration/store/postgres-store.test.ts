import { inject, test, expect } from 'vitest';
import { isSchemaInRange, migrate, schemaVersion } from '../../../operator/store/migrate.ts';
import { openDatabase } from '../../../operator/store/database.ts';
import { admin, urlOf } from '../postgres.ts';
import { storeConformance } from './conformance.ts';
import { useStore } from './fixture.ts';

storeConformance(useStore());

test('two migrations that start at once leave one schema', async () => {
  const adminUrl = inject('postgres');
  await admin(adminUrl, 'CREATE DATABASE migrated_twice');
  const url = urlOf(adminUrl, 'migrated_twice');
  const signal = AbortSignal.timeout(30_000);
  await Promise.all([migrate(url, { say: () => undefined }, signal), migrate(url, { say: () => undefined }, signal)]);
  const database = openDatabase(url, { size: 1, name: 'test' });
  expect(isSchemaInRange(await schemaVersion(database, signal))).toBe(true);
  await database.close();
});

test('a schema that is newer than the program is refused', async () => {
  const adminUrl = inject('postgres');
  await admin(adminUrl, 'CREATE DATABASE from_the_future');
  const url = urlOf(adminUrl, 'from_the_future');
  const signal = AbortSignal.timeout(30_000);
  await migrate(url, { say: () => undefined }, signal);
  await admin(url, "INSERT INTO schema_migration (version, name) VALUES (9999, 'future')");
  await expect(migrate(url, { say: () => undefined }, signal)).rejects.toThrow(/schema 9999/);
});
