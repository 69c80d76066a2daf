/** One installation for all end-to-end files; made here when the runner did not bring a cluster up already. */
import type { TestProject } from 'vitest/node';
import { install, type Installation } from '../installation/install.ts';

declare module 'vitest' {
  interface ProvidedContext {
    installation: Installation;
  }
}

export default async function setup(project: TestProject): Promise<void> {
  const context = process.env['LATHE_TEST_CONTEXT'];
  const installation = await install(
    {
      name: process.env['LATHE_TEST_CLUSTER'] ?? 'test',
      ...(context ? { context } : {}),
      // Many workspaces at once on a small machine: each is small, and gone soon after its last command.
      values: {
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
