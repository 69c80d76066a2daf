/**
 * `npm run demo`: from a fresh machine to a finished piece of work, with everything real: a cluster, the images, the
 * Helm chart, then examples/quickstart/: a failing test shown by a command and mended by a (scripted) model.
 *
 *   npm run demo [-- --json] [--model NAME] [--context NAME [--push REGISTRY]] [--name CLUSTER] [--dry-run] [--down]
 *
 * `--model` uses a real model: ANTHROPIC_API_KEY goes into a Secret of the install namespace, never into a sandbox.
 * Exit code 0 when every turn ended as it should and the sandbox is confined as promised.
 */
import { parseArgs } from 'node:util';
import { createTwoFilesPatch } from 'diff';
import { parse, stringify } from 'yaml';
import type { DiffResponse, TurnsServiceClient } from '../../proto/gen/lathe/turns/v1/turns.ts';
import { clusterDown } from '../../test/cluster/cluster.ts';
import { install, NAMESPACE } from '../../test/installation/install.ts';
import { kubectlOf, type Tool } from '../../test/installation/kubectl.ts';
import { connectTurns } from '../../test/installation/turns-client.ts';
import { confinementFaults, readConfinement } from './confinement.ts';
import { followTurn, type Ending } from './transcript.ts';

type TurnResult = Readonly<{ name: string; phase: string; exitCode?: number; files: Ending['files']; seconds: number }>;

const EXAMPLE = 'examples/quickstart';
const TEAM = 'quickstart';
const WORKSPACE = 'invoice';
/** In order: what each turn must end as, with a model that follows its script. */
const TURNS = [
  { name: 'show-failure', phase: 'Failed' },
  { name: 'fix-tests', phase: 'Completed' },
  { name: 'confinement', phase: 'Completed' },
] as const;

const { values: options } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    down: { type: 'boolean', default: false },
    'dry-run': { type: 'boolean', default: false },
    model: { type: 'string' },
    context: { type: 'string' },
    push: { type: 'string' },
    name: { type: 'string', default: 'lathe' },
  },
});
const stop = new AbortController();
for (const name of ['SIGINT', 'SIGTERM'] as const)
  process.once(name, () => stop.abort(new Error(`stopped by ${name}`)));

try {
  if (options['dry-run']) dryRun();
  else if (options.down) await down(stop.signal);
  else process.exitCode = await demo(stop.signal);
} catch (error) {
  process.stderr.write(`\n${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
}

async function demo(signal: AbortSignal): Promise<number> {
  const apiKey = process.env['ANTHROPIC_API_KEY'];
  if (options.model !== undefined && !apiKey) {
    throw new Error(
      `--model ${options.model} needs a key, and ANTHROPIC_API_KEY is not set; set it, or leave --model out`,
    );
  }
  title('A cluster with Lathe in it');
  const { cluster, seconds } = await install(
    {
      name: options.name,
      ...(options.context ? { context: options.context } : {}),
      ...(options.push ? { push: options.push } : {}),
      ...(options.model
        ? { values: { model: { secretName: 'anthropic', secretKey: 'key', name: options.model } } }
        : {}),
      onProgress: (line) => say(`  ${line}`),
    },
    signal,
  );
  const kubectl = kubectlOf(cluster);
  if (options.model !== undefined && apiKey) await keepKey(kubectl, apiKey, signal);

  title(`The example project (${EXAMPLE})`);
  await startAnew(kubectl, signal);
  await kubectl.run(['apply', '-f', '-'], { input: await example(kubectl, options.model, signal) }, signal);
  await kubectl.run(
    ['-n', TEAM, 'wait', '--for=condition=Ready', `workspace/${WORKSPACE}`, '--timeout=120s'],
    {},
    signal,
  );
  say(await kubectl.run(['-n', TEAM, 'get', 'workspaces'], {}, signal));

  await using turns = await connectTurns(cluster, { namespace: NAMESPACE, direct: false }, signal);
  const results: TurnResult[] = [];
  let lastOutput = '';
  for (const { name } of TURNS) {
    title(`Turn ${name}`);
    const began = performance.now();
    await kubectl.run(['apply', '-f', `${EXAMPLE}/turns/${name}.yaml`], {}, signal);
    const ending = await followTurn(
      turns.client,
      { namespace: TEAM, workspace: WORKSPACE, turn: name },
      (text) => process.stdout.write(text),
      { colour: process.stdout.isTTY && !process.env['NO_COLOR'] },
      signal,
    );
    await kubectl.run(['-n', TEAM, 'wait', '--for=condition=Finished', `turn/${name}`, '--timeout=60s'], {}, signal);
    lastOutput = ending.output;
    results.push({
      name,
      phase: ending.phase,
      ...(ending.exitCode === undefined ? {} : { exitCode: ending.exitCode }),
      files: ending.files,
      seconds: Math.round((performance.now() - began) / 100) / 10,
    });
  }

  title('What kubectl shows');
  say(await kubectl.run(['-n', TEAM, 'get', 'workspaces,turns,sandboxes,pods'], {}, signal));
  title('What was changed in the workspace, read without its pod');
  say(await patch(turns.client, signal));
  title('The confinement of the sandbox, read from inside');
  const confinement = readConfinement(lastOutput);
  for (const [key, value] of Object.entries(confinement)) say(`  ${key.padEnd(14)} ${value}`);

  const faults = [
    ...confinementFaults(confinement),
    ...TURNS.flatMap(({ name, phase }, i) =>
      results[i]?.phase === phase ? [] : [`turn ${name} should end ${phase} and ended ${results[i]?.phase}`],
    ),
  ];
  for (const fault of faults) say(`  FAULT: ${fault}`);
  if (faults.length === 0) nextSteps(cluster.kubeconfig, kubectl.path);
  if (options.json) say(JSON.stringify({ turns: results, confinement, seconds }));
  return faults.length === 0 ? 0 : 1;
}

/** A second run shows the same as the first: the example's namespace is ours and is made anew. */
async function startAnew(kubectl: Tool, signal: AbortSignal): Promise<void> {
  await kubectl.run(['delete', 'namespace', TEAM, '--ignore-not-found', '--wait'], {}, signal);
}

/** The manifests; with a real model the class names it instead of its script. */
async function example(kubectl: Tool, model: string | undefined, signal: AbortSignal): Promise<string> {
  const manifests = await kubectl.run(['kustomize', EXAMPLE], {}, signal);
  if (model === undefined) return manifests;
  const documents = manifests.split(/^---$/m).map((text) => parse(text) as Record<string, unknown>);
  return documents
    .map((document) => {
      if (document['kind'] !== 'WorkspaceClass') return stringify(document);
      const entry = { name: model, provider: 'Anthropic', model, apiKeySecret: { name: 'anthropic', key: 'key' } };
      return stringify({
        ...document,
        spec: { ...(document['spec'] as object), defaultModel: model, models: [entry] },
      });
    })
    .join('---\n');
}

async function keepKey(kubectl: Tool, apiKey: string, signal: AbortSignal): Promise<void> {
  const secret = {
    apiVersion: 'v1',
    kind: 'Secret',
    metadata: { name: 'anthropic', namespace: NAMESPACE },
    stringData: { key: apiKey },
  };
  // By standard input: an argument would show in the process list.
  await kubectl.run(['apply', '-f', '-'], { input: JSON.stringify(secret) }, signal);
}

/** Seeded as version 1; what came after it is the work of the turns. */
async function patch(client: TurnsServiceClient, signal: AbortSignal): Promise<string> {
  const call = client.diff({ workspace: { namespace: TEAM, name: WORKSPACE }, from: 1n, to: 0n });
  signal.addEventListener('abort', () => call.cancel(), { once: true });
  let text = '';
  for await (const file of call as AsyncIterable<DiffResponse>) {
    const name = file.path.slice(1);
    text += createTwoFilesPatch(
      `a/${name}`,
      `b/${name}`,
      file.before?.toString('utf8') ?? '',
      file.after?.toString('utf8') ?? '',
    );
  }
  return text === '' ? 'nothing' : text;
}

async function down(signal: AbortSignal): Promise<void> {
  if (options.context !== undefined) {
    throw new Error(
      `the cluster of context ${options.context} is not ours to remove; there: helm uninstall lathe -n ${NAMESPACE}`,
    );
  }
  await clusterDown({ name: options.name, onProgress: (line) => say(`  ${line}`) }, signal);
}

function dryRun(): void {
  const where = options.context
    ? `the cluster of context ${options.context}`
    : `a cluster named ${options.name} on this machine`;
  say(`would use or make ${where},`);
  say('would build the images server, runtime, sandbox and postgres and load them there,');
  say(`would install charts/lathe into namespace ${NAMESPACE} with Helm,`);
  say(
    `would delete and make namespace ${TEAM}, apply ${EXAMPLE} and run its turns: ${TURNS.map((t) => t.name).join(', ')}`,
  );
}

function nextSteps(kubeconfig: string, kubectl: string): void {
  title('What to try next');
  const k = `${kubectl} --kubeconfig ${kubeconfig}`;
  say(`  ${k} -n ${TEAM} describe turn fix-tests`);
  say(`  ${k} explain workspace.spec.files`);
  say(`  ${k} -n ${TEAM} apply -f -      # a Turn of your own, as in ${EXAMPLE}/turns/`);
  say('  npm run demo -- --down         # remove all of it');
}

function title(text: string): void {
  say(`\n== ${text}`);
}

function say(text: string): void {
  process.stdout.write(`${text}\n`);
}
