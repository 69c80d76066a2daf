/** Contents that one side asked the other for. Each is answered, at the latest when the other side is gone. */
import type { Content } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';

/** A batch is 4 MiB, of which a file has at least one byte too many to be inline; more is no batch. */
const MAX_OPEN = 20_000;

export class Wants {
  readonly #open = new Map<string, Buffer>();

  /** @throws Error when more is asked for at once than anybody means to */
  asked(sha256: readonly Uint8Array[]): void {
    for (const hash of sha256) this.#open.set(Buffer.from(hash).toString('hex'), Buffer.from(hash));
    if (this.#open.size > MAX_OPEN) throw new Error(`more than ${MAX_OPEN} contents are asked for at once`);
  }

  answered({ sha256, last }: Content): void {
    if (last) this.#open.delete(Buffer.from(sha256).toString('hex'));
  }

  /** The answers to all that is open. */
  fail(error: string): readonly Content[] {
    const all = [...this.#open.values()];
    this.#open.clear();
    return all.map((sha256) => ({ sha256, offset: 0n, data: Buffer.alloc(0), last: true, error }));
  }
}
