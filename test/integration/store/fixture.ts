/** A database of its own for a test file, and rows to begin with. */
import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, inject } from 'vitest';
import { openControlStore, type ControlStore } from '../../../operator/store/control-store.ts';
import { newId } from '../../../operator/store/ids.ts';
import { openPostgresStore, type PostgresStore } from '../../../operator/store/postgres-store.ts';
import type { EffectiveSpec, TurnSpec } from '../../../crds/types.ts';
import type { WorkspaceRow } from '../../../operator/store/rows.ts';
import { TEMPLATE } from '../global-setup.ts';
import { cloneDatabase } from '../postgres.ts';

export const EFFECTIVE: EffectiveSpec = {
  class: 'default',
  image: 'image',
  resources: { cpu: '1', memory: '1Gi', disk: '1Gi' },
  volume: { mode: 'Ephemeral', size: '1Gi' },
  files: {
    ignored: ['**/node_modules/**'],
    maxFileSize: '1Mi',
    maxTotalSize: '8Mi',
    maxFiles: 1_000,
    deletions: { ratio: 50, atLeast: 20 },
  },
  sandbox: { idleTimeout: '5m', maxLifetime: '1h' },
};

export type Fixture = {
  url: string;
  store: PostgresStore;
  control: ControlStore;
  workspace(options?: {
    seed?: boolean;
    namespace?: string;
    name?: string;
    effective?: Partial<EffectiveSpec>;
  }): Promise<WorkspaceRow>;
  turn(workspace: WorkspaceRow, spec: Partial<TurnSpec>): Promise<string>;
  replica(): Promise<string>;
};

export function useStore(): Fixture {
  const fixture = {} as Fixture;
  beforeAll(async () => {
    fixture.url = await cloneDatabase(inject('postgres'), `t_${randomBytes(6).toString('hex')}`, TEMPLATE);
    fixture.store = openPostgresStore(fixture.url, 'test');
    fixture.control = openControlStore(fixture.url);
    fixture.workspace = async ({
      seed = false,
      namespace = 'team',
      name = `w-${randomBytes(4).toString('hex')}`,
      effective = {},
    } = {}) => {
      const tenant = await fixture.control.upsertTenant({ namespace, namespaceUid: `uid-${namespace}` });
      const { id } = await fixture.control.upsertWorkspace({
        tenant,
        namespace,
        name,
        uid: newId(),
        generation: 1,
        class: 'default',
        spec: {},
        effective: { ...EFFECTIVE, ...effective },
        hasSeed: seed,
      });
      const row = await fixture.store.getWorkspace(id);
      if (row === undefined) throw new Error('the workspace is not there');
      return row;
    };
    fixture.turn = async (workspace, spec) => {
      const row = await fixture.control.upsertTurn({
        workspace: workspace.id,
        name: `t-${randomBytes(4).toString('hex')}`,
        uid: newId(),
        spec: { workspace: workspace.name, ...spec },
        specHash: 'hash',
      });
      return row.id;
    };
    fixture.replica = async () => {
      const replica = newId();
      await fixture.store.heartbeat({ replica, address: `${replica}:8443` });
      return replica;
    };
  });
  afterAll(async () => {
    await fixture.store?.close();
    await fixture.control?.close();
  });
  return fixture;
}
