/**
 * `npm run cluster -- up|down|status|load-images|kubeconfig [--name NAME] [--context NAME] [--json]`
 *
 * `load-images` takes IMAGE=ARCHIVE pairs; `kubeconfig` prints the path of the file.
 */
import { parseArgs } from 'node:util';
import { clusterDown, clusterStatus, clusterUp, DEFAULT_NAME, loadImages } from './cluster.ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    name: { type: 'string', default: DEFAULT_NAME },
    context: { type: 'string' },
    json: { type: 'boolean', default: false },
  },
});
const stop = new AbortController();
for (const name of ['SIGINT', 'SIGTERM'] as const)
  process.once(name, () => stop.abort(new Error(`stopped by ${name}`)));

try {
  process.exitCode = await main(positionals[0], positionals.slice(1), stop.signal);
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
}

async function main(command: string | undefined, rest: readonly string[], signal: AbortSignal): Promise<number> {
  const where = {
    name: values.name,
    ...(values.context === undefined ? {} : { context: values.context }),
    onProgress: progress,
  };
  switch (command) {
    case 'up': {
      const cluster = await clusterUp(where, signal);
      print(cluster, `export KUBECONFIG=${cluster.kubeconfig}`);
      return 0;
    }
    case 'down':
      await clusterDown(where, signal);
      return 0;
    case 'status': {
      const status = await clusterStatus(where, signal);
      const lines = Object.entries(status.processes).map(([name, up]) => `  ${name}: ${up ? 'running' : 'ended'}`);
      print(status, [`cluster ${status.name}: ${status.running ? 'up' : 'not up'}`, ...lines].join('\n'));
      return status.running ? 0 : 1;
    }
    case 'kubeconfig': {
      const cluster = await clusterUp(where, signal);
      process.stdout.write(`${cluster.kubeconfig}\n`);
      return 0;
    }
    case 'load-images': {
      const images = rest.map((pair) => {
        const at = pair.indexOf('=');
        if (at < 1) throw new Error(`${pair} is not IMAGE=ARCHIVE`);
        return { image: pair.slice(0, at), archive: pair.slice(at + 1) };
      });
      await loadImages(await clusterUp(where, signal), images, signal);
      return 0;
    }
    default:
      process.stderr.write(
        'usage: npm run cluster -- up|down|status|load-images|kubeconfig [--name NAME] [--context NAME] [--json]\n',
      );
      return 2;
  }
}

function print(value: object, text: string): void {
  process.stdout.write(`${values.json ? JSON.stringify(value) : text}\n`);
}

function progress(line: string): void {
  process.stderr.write(`${line}\n`);
}
