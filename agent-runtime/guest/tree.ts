/** The workspace's files as this guest knows them: at which version, and what it takes to be at another one. */
import type { CollectOptions, Settle, Sync, Synced } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { compileGlobs } from '../../proto/globs.ts';
import { removeOthers } from './clean.ts';
import type { Contents } from './contents.ts';
import { applyEntries, type Applied } from './hydrate.ts';
import { offer, type Offering } from './offer.ts';
import { Index } from './index.ts';
import { fileSystemNowMs } from './file-system-clock.ts';
import { isEmptyFolder } from './folders.ts';
import { clearStaging } from './staging.ts';

/** Pages that are not all there yet. */
type Coming = Applied & { error: string };

export class Tree {
  readonly root: string;
  readonly #contents: Contents;
  readonly #told = new Set<string>();
  /** The tree at `version`, and what it was seen to be since; the owner has not said yet that this is a version. */
  #base = new Index();
  #seen: Index | undefined;
  #version: bigint | undefined;
  #syncing: Coming | undefined;
  #settling: { ok: boolean } | undefined;
  #startedMs = 0;

  constructor(root: string, contents: Contents) {
    this.root = root;
    this.#contents = contents;
  }

  /** Undefined: unknown, so that everything has to be compared. */
  get version(): bigint | undefined {
    return this.#version;
  }

  /** Nothing is there, so that everything will be needed. */
  isEmpty(): boolean {
    return isEmptyFolder(this.root);
  }

  /** One page. @returns the answer to the last one */
  async sync(page: Sync): Promise<Synced | undefined> {
    const coming = (this.#syncing ??= this.#beginSync(page));
    try {
      if (coming.error === '') {
        const { written, deleted } = await applyEntries(this.root, page.entries, this.#base, this.#contents);
        coming.written += written;
        coming.deleted += deleted;
        // What was put is all that is remembered, so it is also all that is kept.
        if (page.last && page.full) coming.deleted += removeOthers(this.root, this.#base, compileGlobs(page.ignored));
      }
    } catch (error) {
      coming.error = error instanceof Error ? error.message : String(error);
    }
    // It was given up while it was waiting for contents.
    if (this.#syncing !== coming || !page.last) return undefined;
    this.#syncing = undefined;
    if (coming.error === '') clearStaging(this.root);
    if (coming.error === '') this.#version = page.toVersion;
    return { version: page.toVersion, ...coming };
  }

  /** One page. After the last one the tree is that version, if everything could be put back. */
  async settle(page: Settle): Promise<void> {
    const settling = (this.#settling ??= { ok: this.#version !== undefined });
    this.#version = undefined;
    const index = (this.#base = this.#seen ?? this.#base);
    this.#seen = undefined;
    try {
      await applyEntries(this.root, page.putBack, index, this.#contents);
    } catch (error) {
      settling.ok = false;
      process.stderr.write(`guest: ${error instanceof Error ? error.message : String(error)}\n`);
    }
    if (this.#settling !== settling || !page.last) return;
    this.#settling = undefined;
    clearStaging(this.root);
    if (settling.ok) this.#version = page.version;
  }

  /** From now on the tree may be written to. */
  commandStarts(): void {
    this.#startedMs = fileSystemNowMs(this.root);
  }

  /** What differs from the version, as of now. Asked again, it answers again. */
  offer(execution: string, collect: CollectOptions | undefined): Offering {
    const offering = offer({
      root: this.root,
      execution,
      baseVersion: this.#version ?? 0n,
      collect,
      before: this.#base,
      quietUntilMs: this.#startedMs,
      told: this.#told,
    });
    if (offering.index === undefined) this.forget();
    this.#seen = offering.index;
    return offering;
  }

  /** Nobody says any more which version this is. */
  forget(): void {
    this.#version = undefined;
  }

  /** The rest of what was coming will not come. */
  giveUp(): void {
    if (this.#syncing !== undefined || this.#settling !== undefined) this.forget();
    this.#syncing = undefined;
    this.#settling = undefined;
    this.#contents.fail(new Error('the owner went away'));
  }

  #beginSync(page: Sync): Coming {
    const coming: Coming = { written: 0, deleted: 0, error: '' };
    if (page.full) {
      this.#base = new Index();
      this.#told.clear();
    } else if (this.#version !== page.fromVersion)
      coming.error = `the tree is at version ${this.#version ?? 'unknown'}, not at ${page.fromVersion}`;
    this.#seen = undefined;
    this.forget();
    return coming;
  }
}
