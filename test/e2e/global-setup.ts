/** One installation for all end-to-end files; made here when the runner did not bring a cluster up already. */
import type { TestProject } from 'vitest/node';
import { layoutOf, SLOTS } from '../cluster/layout.ts';
import { install, type Installation } from '../installation/install.ts';

declare module 'vitest' {
  interface ProvidedContext {
    installation: Installation;
  }
}

const POD_NETWORKS = Array.from({ length: SLOTS }, (_, slot) => layoutOf('any', slot).podNetwork);

export default async function setup(project: TestProject): Promise<void> {
  const context = process.env['LATHE_TEST_CONTEXT'];
  const installation = await install(
    {
      name: process.env['LATHE_TEST_CLUSTER'] ?? 'test',
      ...(context ? { context } : {}),
      // Many workspaces at once on a small machine: each is small, and gone soon after its last command.
      values: {
        // The pods of the cluster, and nothing else of it: a test's Git server is one.
        seed: { allowedPrivateHosts: ['10.244.0.0/16', ...POD_NETWORKS] },
        class: {
          spec: {
            resources: { default: { cpu: '150m', memory: '256Mi', disk: '256Mi' } },
            sandbox: { idleTimeout: '15s' },
          },
        },
      },
      onProgress: (line) => void process.stderr.write(`${line}\n`),
    },
    AbortSignal.timeout(20 * 60_000),
  );
  project.provide('installation', installation);
}
