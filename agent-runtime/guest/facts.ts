/** What the container says of itself, for people. Believed only as that. */
import { readFileSync } from 'node:fs';

export function facts(): Record<string, string> {
  const status = read('/proc/self/status');
  const of = (key: string) => new RegExp(`^${key}:\\s*(.*)$`, 'm').exec(status)?.[1]?.trim() ?? 'unknown';
  const first = (...paths: string[]) => paths.map((path) => read(path).trim()).find((text) => text !== '') ?? 'unknown';
  return {
    uid: String(process.getuid?.() ?? 'unknown'),
    gid: String(process.getgid?.() ?? 'unknown'),
    capabilities: of('CapEff'),
    noNewPrivs: of('NoNewPrivs'),
    seccomp: of('Seccomp'),
    memoryLimit: first('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory/memory.limit_in_bytes'),
    cpuQuota: first('/sys/fs/cgroup/cpu.max', '/sys/fs/cgroup/cpu/cpu.cfs_quota_us'),
    pidsLimit: first('/sys/fs/cgroup/pids.max', '/sys/fs/cgroup/pids/pids.max'),
    userNamespace: /^\s*0\s+0\s+4294967295\s*$/.test(read('/proc/self/uid_map')) ? 'host' : 'own',
  };
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return '';
  }
}
