// PID 1 of a test's namespace: runs its arguments, reaps orphans, ends when the program does. A signal to it ends both.
import { spawn } from 'node:child_process';

const [program, ...args] = process.argv.slice(2);
const child = spawn(program, args, { stdio: 'inherit' });
child.once('exit', () => process.exit(0));
// Node reaps only what it started; a zombie more or less does no harm in a test.
