/** The broker's way to its workspace's owner: dials the Service, follows redirects, comes back for ever. */
import { readFile } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { credentials, Metadata, type ChannelCredentials, type ClientDuplexStream } from '@grpc/grpc-js';
import {
  SandboxServiceClient,
  type AttachRequest,
  type AttachResponse,
  type BulkRequest,
  type BulkResponse,
} from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { Broker, TurnsLink, Up } from './broker.ts';

export type Target = Readonly<{ address: string; tlsName: string; ca: Buffer; tokenFile: string }>;

/** The first tries are short: a network policy that is not in force yet swallows a first packet, and TCP waits a second. */
const FIRST_CONNECT_MS = 200;
const CONNECT_MS = 3_000;
const MAX_HOPS = 3;
const TOKEN_REFRESH_MS = 120_000;

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
    const outcome = await attach(
      address,
      secure,
      target,
      broker,
      Math.min(CONNECT_MS, FIRST_CONNECT_MS * 2 ** attempt),
      signal,
    ).catch((error: unknown) => ({
      failed: error instanceof Error ? error.message : String(error),
    }));
    if ('redirect' in outcome && hops < MAX_HOPS) {
      hops += 1;
      address = outcome.redirect;
      continue;
    }
    if ('failed' in outcome) log(`not attached to ${address}: ${outcome.failed}`);
    if ('served' in outcome) attempt = 0;
    address = target.address;
    hops = 0;
    // Full jitter: a whole fleet that lost its owner must not come back in step.
    await delay(50 + Math.random() * Math.min(5_000, 100 * 2 ** Math.min(attempt, 6)), undefined, { signal }).catch(
      () => undefined,
    );
  }
}

type Outcome = Readonly<{ redirect: string } | { served: true }>;

async function attach(
  address: string,
  secure: ChannelCredentials,
  target: Target,
  broker: Broker,
  connectMs: number,
  signal: AbortSignal,
): Promise<Outcome> {
  const dial = () =>
    new SandboxServiceClient(address, secure, {
      'grpc.ssl_target_name_override': target.tlsName,
      'grpc.default_authority': target.tlsName,
      'grpc.keepalive_time_ms': 5_000,
      'grpc.keepalive_timeout_ms': 5_000,
      'grpc.keepalive_permit_without_calls': 1,
      'grpc.max_receive_message_length': 512 * 1024,
      // Each on a connection of its own: output never waits behind bulk.
      'grpc.use_local_subchannel_pool': 1,
    });
  const client = dial();
  const bulkClient = dial();
  try {
    await new Promise<void>((resolve, reject) =>
      client.waitForReady(Date.now() + connectMs, (error) => (error ? reject(error) : resolve())),
    );
    const metadata = new Metadata();
    metadata.set('authorization', `Bearer ${(await readFile(target.tokenFile, 'utf8')).trim()}`);
    const call = client.attach(metadata);
    const cancel = () => call.cancel();
    signal.addEventListener('abort', cancel, { once: true });
    const refresh = setInterval(() => {
      void readFile(target.tokenFile, 'utf8').then(
        (token) => sender.send({ $case: 'token', value: { token: token.trim() } }),
        () => undefined,
      );
    }, TOKEN_REFRESH_MS);
    const sender = senderOf(call);
    let link: (TurnsLink & { bulk: ClientDuplexStream<BulkRequest, BulkResponse> }) | undefined;
    try {
      sender.send({ $case: 'hello', value: broker.hello() });
      for await (const response of call as AsyncIterable<AttachResponse>) {
        sender.seen(response.seq);
        const { message } = response;
        if (message === undefined) continue;
        if (message.$case === 'redirect') return { redirect: message.value.address };
        if (message.$case === 'welcome') {
          metadata.set('lathe-attach', message.value.attach);
          const bulk = bulkClient.bulk(metadata);
          link = { send: sender.send, bulk, content: (content) => write(bulk, { content }) };
          void receiveBulk(bulk, broker, cancel);
          if (!broker.attachTurns(link, message.value))
            throw new Error('this owner is older than one that was obeyed before');
        } else broker.fromTurns(message);
      }
      return { served: true };
    } finally {
      clearInterval(refresh);
      signal.removeEventListener('abort', cancel);
      if (link !== undefined) {
        broker.detachTurns(link);
        link.bulk.cancel();
      }
      call.cancel();
    }
  } finally {
    client.close();
    bulkClient.close();
  }
}

async function receiveBulk(
  bulk: ClientDuplexStream<BulkRequest, BulkResponse>,
  broker: Broker,
  failed: () => void,
): Promise<void> {
  try {
    for await (const { content } of bulk as AsyncIterable<BulkResponse>)
      if (content !== undefined) await broker.contentFromTurns(content);
  } catch {
    // Without bulk nothing can be hydrated: start over with both.
    failed();
  }
}

/** Numbers the messages of one attach. What is written is bounded by the owner's credits. */
function senderOf(call: ClientDuplexStream<AttachRequest, AttachResponse>) {
  let seq = 0n;
  let ack = 0n;
  return {
    send: (message: Up) => void call.write({ seq: (seq += 1n), ack, message }),
    seen: (n: bigint) => void (ack = n),
  };
}

async function write(stream: ClientDuplexStream<BulkRequest, BulkResponse>, message: BulkRequest): Promise<void> {
  if (stream.write(message) || stream.destroyed) return;
  await new Promise<void>((resolve) => {
    const done = () => {
      stream.off('drain', done).off('close', done).off('error', done);
      resolve();
    };
    stream.once('drain', done).once('close', done).once('error', done);
  });
}
