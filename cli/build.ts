/** `npm run build:cli`: one file to install, dist/kubectl-lathe. */
import { chmod, mkdir, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { bundle } from '../images/bundle.ts';

const folder = join(import.meta.dirname, '../dist');
await mkdir(folder, { recursive: true });
const made = await bundle('kubectl-lathe', folder);
const target = join(folder, 'kubectl-lathe');
await rename(made, target);
await chmod(target, 0o755);
process.stdout.write(`${target}\nput it into a folder of PATH; then: kubectl lathe help (Node 24 or newer runs it)\n`);
