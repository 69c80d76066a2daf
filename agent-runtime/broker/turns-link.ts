/** The broker's way to its workspace's owner: dials the Service, follows redirects, comes back for ever. */
import { readFile } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { credentials, Metadata, type ChannelCredentials } from '@grpc/grpc-js';
import { SandboxServiceClient } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { attach } from './attach.ts';
import type { Broker } from './broker.ts';

export type Target = Readonly<{ address: string; tlsName: string; ca: Buffer; tokenFile: string }>;

/** The first tries are short: a network policy that is not in force yet swallows a first packet, and TCP waits a second. */
const FIRST_CONNECT_MS = 200;
const CONNECT_MS = 3_000;
const MAX_HOPS = 3;
const MAX_DELAY_MS = 5_000;
const OPTIONS = {
  'grpc.keepalive_time_ms': 5_000,
  'grpc.keepalive_timeout_ms': 5_000,
  'grpc.keepalive_permit_without_calls': 1,
  'grpc.max_receive_message_length': 512 * 1024,
  // Each on a connection of its own: output never waits behind bulk.
  'grpc.use_local_subchannel_pool': 1,
};

/** Ends with the signal only. */
export async function keepAttached(
  target: Target,
  broker: Broker,
  log: (line: string) => void,
  signal: AbortSignal,
): Promise<void> {
  const secure = credentials.createSsl(target.ca);
  let address = target.address;
  let hops = 0;
  for (let attempt = 0; !signal.aborted; attempt += 1) {
    const connectMs = Math.min(CONNECT_MS, FIRST_CONNECT_MS * 2 ** attempt);
    const outcome = await dial(address, secure, target, broker, connectMs, signal).catch((error: unknown) => ({
      failed: error instanceof Error ? error.message : String(error),
      attached: false,
    }));
    if ('redirect' in outcome && hops < MAX_HOPS) {
      hops += 1;
      address = outcome.redirect;
      continue;
    }
    log(`not attached to ${address}: ${'failed' in outcome ? outcome.failed : 'redirected too often'}`);
    if ('failed' in outcome && outcome.attached) attempt = 0;
    address = target.address;
    hops = 0;
    // Jitter: a whole fleet that lost its owner must not come back in step.
    const most = Math.min(MAX_DELAY_MS, 100 * 2 ** Math.min(attempt, 6));
    await delay(50 + Math.random() * most, undefined, { signal }).catch(() => undefined);
  }
}

async function dial(
  address: string,
  secure: ChannelCredentials,
  target: Target,
  broker: Broker,
  connectMs: number,
  signal: AbortSignal,
): ReturnType<typeof attach> {
  const names = { 'grpc.ssl_target_name_override': target.tlsName, 'grpc.default_authority': target.tlsName };
  const client = new SandboxServiceClient(address, secure, { ...OPTIONS, ...names });
  const bulkClient = new SandboxServiceClient(address, secure, { ...OPTIONS, ...names });
  try {
    await new Promise<void>((resolve, reject) =>
      client.waitForReady(Date.now() + connectMs, (error) => (error ? reject(error) : resolve())),
    );
    // Kubernetes renews the file; it is read anew each time.
    const readToken = async () => (await readFile(target.tokenFile, 'utf8')).trim();
    const metadata = new Metadata();
    metadata.set('authorization', `Bearer ${await readToken()}`);
    return await attach({ client, bulkClient, metadata, readToken, broker }, signal);
  } finally {
    client.close();
    bulkClient.close();
  }
}
