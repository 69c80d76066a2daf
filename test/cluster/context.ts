/** A cluster of somebody else's, by the name of a kubeconfig context. We start nothing there and stop nothing. */
import { homedir } from 'node:os';
import { join } from 'node:path';
import { clientTools, type Cluster, type Say } from './cluster.ts';
import { run } from './run.ts';

export async function contextCluster(context: string, say: Say, signal: AbortSignal): Promise<Cluster> {
  const tools = await clientTools(say, signal);
  const kubeconfig = process.env['KUBECONFIG']?.split(':')[0] ?? join(homedir(), '.kube', 'config');
  await run([tools.kubectl, '--kubeconfig', kubeconfig, '--context', context, 'get', '--raw', '/readyz'], signal).catch(
    (cause: unknown) => {
      throw new Error(
        `the cluster of context ${context} (${kubeconfig}) does not answer; see: kubectl config get-contexts`,
        { cause },
      );
    },
  );
  return { name: context, kind: 'context', kubeconfig, context, ...tools };
}
