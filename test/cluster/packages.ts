/** Debian packages that this machine lacks: said, then installed. */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { promisify } from 'node:util';

const exec = promisify(execFile);

/** @throws Error naming the packages when they can't be installed by us */
export async function ensurePackages(
  names: readonly string[],
  say: (line: string) => void,
  signal: AbortSignal,
): Promise<void> {
  const missing: string[] = [];
  for (const name of names) if (!(await isInstalled(name, signal))) missing.push(name);
  if (missing.length === 0) return;
  if (process.getuid?.() !== 0 || !existsSync('/usr/bin/apt-get')) {
    throw new Error(
      `these packages are missing: ${missing.join(' ')}; install them (Debian names), or run as root on Debian`,
    );
  }
  say(`installing Debian packages: ${missing.join(' ')}`);
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' };
  const install = () =>
    exec('apt-get', ['install', '-y', '-q', '--no-install-recommends', ...missing], {
      env,
      signal,
      maxBuffer: 64 << 20,
    });
  // The lists may be absent or old; updating them costs seconds, so only when it is needed.
  await install().catch(async () => {
    await exec('apt-get', ['update', '-q'], { env, signal, maxBuffer: 64 << 20 });
    await install();
  });
}

async function isInstalled(name: string, signal: AbortSignal): Promise<boolean> {
  return await exec('dpkg-query', ['-W', '-f', '${db:Status-Status}', name], { signal }).then(
    ({ stdout }) => stdout === 'installed',
    () => false,
  );
}
