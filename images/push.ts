/** To a registry: by Docker where an engine runs (it has the log-ins), else by skopeo. */
import { dockerAnswers } from '../test/cluster/kind.ts';
import { ensurePackages } from '../test/cluster/packages.ts';
import { run } from '../test/cluster/run.ts';

/** `from` is the image's name in its archive, `to` the one it gets. */
export async function pushImage(
  archive: string,
  from: string,
  to: string,
  say: (line: string) => void,
  signal: AbortSignal,
): Promise<void> {
  if (await dockerAnswers(signal)) {
    await run(['docker', 'load', '--input', archive], signal);
    await run(['docker', 'tag', from, to], signal);
    await run(['docker', 'push', to], signal);
    return;
  }
  await ensurePackages(['skopeo'], say, signal);
  const source = `docker-archive:${archive}`;
  await run(['skopeo', '--insecure-policy', 'copy', ...transport(to), source, `docker://${to}`], signal);
}

/** As with Docker: a registry on this machine may speak plain HTTP. */
export function transport(image: string): readonly string[] {
  return /^(localhost|127(\.\d+){3}|\[::1\])(:\d+)?\//.test(image) ? ['--dest-tls-verify=false'] : [];
}
