/**
 * `npm run bench -- NAME [--json] [--samples N] [--name CLUSTER] [--context NAME]`: one performance claim, measured
 * against something real in the same run. The last line is one JSON object; before it a table for people
 * (`--json` leaves the table out).
 */
import { parseArgs } from 'node:util';
import { install } from '../test/installation/install.ts';
import { coldBench } from './cold.ts';
import { collectBench } from './collect.ts';
import { execBench } from './exec.ts';
import { hydrateBench } from './hydrate.ts';
import type { Figures } from './measure.ts';
import { placeBench, readBench } from './transfer.ts';
import type { Bench, LocalBench, Parts } from './bench.ts';

const BENCHES: Readonly<Record<string, Bench>> = {
  exec: execBench,
  cold: coldBench,
  place: placeBench,
  read: readBench,
  hydrate: hydrateBench,
};
const LOCAL: Readonly<Record<string, LocalBench>> = { collect: collectBench };

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    json: { type: 'boolean', default: false },
    samples: { type: 'string' },
    name: { type: 'string', default: 'lathe' },
    context: { type: 'string' },
  },
});
const stop = new AbortController();
for (const name of ['SIGINT', 'SIGTERM'] as const)
  process.once(name, () => stop.abort(new Error(`stopped by ${name}`)));
process.exitCode = await main(positionals[0], stop.signal);

async function main(name: string | undefined, signal: AbortSignal): Promise<number> {
  const bench = name === undefined ? undefined : BENCHES[name];
  const local = name === undefined ? undefined : LOCAL[name];
  if (name === undefined || (bench === undefined && local === undefined)) {
    const names = [...Object.keys(BENCHES), ...Object.keys(LOCAL)].join(', ');
    process.stderr.write(`usage: npm run bench -- NAME [--json]; NAME is one of: ${names}\n`);
    return 2;
  }
  const samples = values.samples === undefined ? undefined : Number(values.samples);
  if (samples !== undefined && !(Number.isInteger(samples) && samples > 0)) {
    process.stderr.write(`--samples ${values.samples} is not a whole number above 0\n`);
    return 2;
  }
  const progress = (line: string) => void process.stderr.write(`${line}\n`);
  const options = { ...(samples === undefined ? {} : { samples }), onProgress: progress };
  const result = local === undefined ? await onCluster(bench, options, signal) : await local(options, signal);
  if (!values.json) {
    if ('parts' in result) for (const part of result.parts) table(`${name}, ${part.part}`, part);
    else table(name, result);
  }
  process.stdout.write(`${JSON.stringify({ bench: name, ...result })}\n`);
  return 0;
}

async function onCluster(
  bench: Bench | undefined,
  options: Parameters<LocalBench>[0],
  signal: AbortSignal,
): Promise<Figures | Parts> {
  if (bench === undefined) throw new Error('no bench');
  const where = { name: values.name, ...(values.context ? { context: values.context } : {}) };
  const installation = await install({ ...where, onProgress: options.onProgress }, signal);
  return await bench({ installation, ...options }, signal);
}

function table(name: string, f: Figures): void {
  const row = (label: string, p: { p50: number; p95: number; p99: number }) =>
    `${label.padEnd(44)}${[p.p50, p.p95, p.p99].map((ms) => ms.toFixed(2).padStart(10)).join('')}\n`;
  process.stdout.write(
    `${`${name}, ${f.samples} samples, ms`.padEnd(44)}${['p50', 'p95', 'p99'].map((p) => p.padStart(10)).join('')}\n`,
  );
  process.stdout.write(row('lathe', f.subject));
  process.stdout.write(row(f.reference.name, f.reference));
  process.stdout.write(`ratio (reference ÷ lathe): p50 ${f.ratio.p50}, p95 ${f.ratio.p95}\n`);
}
