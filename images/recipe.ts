/** How one image is made: its layers, lowest first, and how it is started. */
import { fileURLToPath } from 'node:url';
import type { ImageConfig } from './archive.ts';
import type { Layer, Workshop } from './layers.ts';

export type Recipe = Readonly<{
  layers: (workshop: Workshop, signal: AbortSignal) => Promise<readonly Layer[]>;
  config: ImageConfig;
}>;

const ROOT = fileURLToPath(new URL('..', import.meta.url));
/** A path in the repository. */
export const repository = (path: string): string => `${ROOT}${path}`;

/** A user of no rights that every image knows, so that programs which ask for their name and home get an answer. */
export const USERS = {
  passwd: [
    'root:x:0:0:root:/root:/bin/sh',
    'nobody:x:65534:65534:nobody:/:/bin/false',
    'broker:x:65531:65532:broker:/:/bin/sh',
    'lathe:x:65532:65532:lathe:/home/lathe:/bin/sh',
  ],
  group: ['root:x:0:', 'nogroup:x:65534:', 'lathe:x:65532:'],
} as const;
