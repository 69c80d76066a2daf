/** To a registry: by Docker where an engine runs (it has the log-ins), else by skopeo. */
import { dockerAnswers } from '../test/cluster/kind.ts';
import { ensurePackages } from '../test/cluster/packages.ts';
import { run } from '../test/cluster/run.ts';

export async function pushImage(
  archive: string,
  image: string,
  say: (line: string) => void,
  signal: AbortSignal,
): Promise<void> {
  if (await dockerAnswers(signal)) {
    await run(['docker', 'load', '--input', archive], signal);
    await run(['docker', 'push', image], signal);
    return;
  }
  await ensurePackages(['skopeo'], say, signal);
  await run(
    ['skopeo', '--insecure-policy', 'copy', ...transport(image), `docker-archive:${archive}`, `docker://${image}`],
    signal,
  );
}

/** As with Docker: a registry on this machine may speak plain HTTP. */
export function transport(image: string): readonly string[] {
  return /^(localhost|127(\.\d+){3}|\[::1\])(:\d+)?\//.test(image) ? ['--dest-tls-verify=false'] : [];
}
