#!/usr/bin/env node
/** `kubectl lathe`: put the bundle, named kubectl-lathe, into a folder of PATH. */
import { run } from './run.ts';

const stop = new AbortController();
for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, () => stop.abort());
// A reader that went away (`| head`) ends us quietly.
process.stdout.on('error', () => process.exit(0));
process.exitCode = await run(process.argv.slice(2), process, stop.signal);
