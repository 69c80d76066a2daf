/** Seeds against real Postgres: a workspace that waits for one, and a replica that makes it. */
import { randomBytes } from 'node:crypto';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll } from 'vitest';
import type { EffectiveSpec, SeedSpec } from '../../../crds/types.ts';
import { TransientError } from '../../../operator/errors.ts';
import { runSeed } from '../../../operator/files/seed.ts';
import type { SeedDeps } from '../../../operator/files/seeds/source.ts';
import { createOutbound } from '../../../operator/outbound.ts';
import { newId } from '../../../operator/store/ids.ts';
import type { FileEntry, LogEvent, WorkspaceRow } from '../../../operator/store/rows.ts';
import type { SeedClaim } from '../../../operator/store/workspace-store.ts';
import { EFFECTIVE, useStore, type Fixture } from '../store/fixture.ts';

/** Of the fake hosts' names; no look-up leaves the machine. */
const NAMES: Readonly<Record<string, string>> = {
  'git.test': '127.0.0.1',
  'private.test': '10.1.2.3',
  'metadata.test': '169.254.169.254',
  'loopback.test': '127.0.0.1',
};

export type SeedWorld = Fixture & {
  folder: string;
  secrets: Map<string, { data: Map<string, Buffer>; hosts?: readonly string[] }>;
  deps(more?: Partial<SeedDeps>): SeedDeps;
  seeded(
    seed: SeedSpec,
    options?: { files?: Partial<EffectiveSpec['files']>; namespace?: string; name?: string },
  ): Promise<WorkspaceRow>;
  claim(workspace: WorkspaceRow, replica?: string): Promise<SeedClaim>;
  /** One try. @returns the row after it */
  attempt(workspace: WorkspaceRow, more?: Partial<SeedDeps>): Promise<WorkspaceRow & { seed_message: string | null }>;
  tree(workspace: WorkspaceRow): Promise<readonly FileEntry[]>;
  read(workspace: WorkspaceRow, path: string): Promise<Buffer>;
  events(workspace: WorkspaceRow): Promise<readonly LogEvent[]>;
  /** What tries left on the disk. */
  leftovers(): Promise<readonly string[]>;
};

export function useSeeds(): SeedWorld {
  const world = useStore() as SeedWorld;
  beforeAll(async () => {
    world.folder = await mkdtemp(join(tmpdir(), 'lathe-seeds-'));
    world.secrets = new Map();
    world.deps = (more = {}) => ({
      store: world.store,
      outbound: createOutbound(['git.test'], async (host) => {
        const address = NAMES[host];
        if (address === undefined) throw Object.assign(new Error('no such host'), { code: 'ENOTFOUND' });
        return [address];
      }),
      readSecret: async (namespace, name) => {
        const secret = world.secrets.get(`${namespace}/${name}`);
        if (secret === undefined) throw new TransientError('NotFound', `there is no Secret ${name}`);
        return secret;
      },
      folder: world.folder,
      ...more,
    });
    world.seeded = async (seed, { files = {}, namespace = 'team', name } = {}) => {
      const tenant = await world.control.upsertTenant({ namespace, namespaceUid: `uid-${namespace}` });
      const { id } = await world.control.upsertWorkspace({
        tenant,
        namespace,
        name: name ?? `s-${randomBytes(4).toString('hex')}`,
        uid: newId(),
        generation: 1,
        class: 'default',
        spec: { seed },
        effective: { ...EFFECTIVE, files: { ...EFFECTIVE.files, ...files } },
        hasSeed: true,
      });
      await world.control.putSeed(id, []);
      return await rowOf(id);
    };
    world.claim = async (workspace, replica) => {
      // Due at once: waiting is what other tests look at.
      await world.store.database.query('due', 'UPDATE workspace SET seed_retry_at = NULL WHERE id = $1', [
        workspace.id,
      ]);
      const by = replica ?? (await world.replica());
      const others: string[] = [];
      for (;;) {
        const claim = await world.store.claimSeed(by, others);
        if (claim === undefined) throw new Error('there was no seed to claim');
        if (claim.workspace.id === workspace.id) return claim;
        others.push(claim.workspace.id);
        await world.store.release(claim.lease);
      }
    };
    world.attempt = async (workspace, more = {}) => {
      const claim = await world.claim(workspace);
      await runSeed(world.deps(more), claim, () => undefined, AbortSignal.timeout(60_000));
      await world.store.release(claim.lease);
      const [row] = await world.store.database.query<{ seed_message: string | null }>(
        'seed-message',
        'SELECT seed_message FROM workspace WHERE id = $1',
        [workspace.id],
      );
      return { ...(await rowOf(workspace.id)), seed_message: row?.seed_message ?? null };
    };
    world.tree = async (workspace) => {
      const all: FileEntry[] = [];
      for await (const page of world.store.tree(workspace.id, undefined)) all.push(...page);
      return all;
    };
    world.read = async (workspace, path) => {
      const entry = (await world.tree(workspace)).find((e) => e.path === path);
      if (entry?.sha256 == null)
        throw new Error(`${path} is no file; there are ${(await world.tree(workspace)).map((e) => e.path).join(' ')}`);
      const chunks: Buffer[] = [];
      for await (const chunk of world.store.readBlob(workspace.tenant, entry.sha256)) chunks.push(chunk);
      return Buffer.concat(chunks);
    };
    world.events = (workspace) => world.store.readEvents(workspace.id, {});
    world.leftovers = () => readdir(world.folder);
  });
  afterAll(async () => {
    if (world.folder !== undefined) await rm(world.folder, { recursive: true, force: true });
  });
  return world;

  async function rowOf(id: string): Promise<WorkspaceRow> {
    const row = await world.store.getWorkspace(id);
    if (row === undefined) throw new Error('the workspace is not there');
    return row;
  }
}
