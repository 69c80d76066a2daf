/** One attach, from hello to its end. */
import type { ClientDuplexStream, Metadata } from '@grpc/grpc-js';
import type {
  AttachRequest,
  AttachResponse,
  BulkRequest,
  BulkResponse,
  SandboxServiceClient,
} from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { Broker, TurnsLink, Up } from './broker.ts';

export type Attach = Readonly<{
  client: SandboxServiceClient;
  bulkClient: SandboxServiceClient;
  metadata: Metadata;
  readToken: () => Promise<string>;
  broker: Broker;
}>;
/** `attached`: there was a welcome, so what failed is not the way there. */
export type Outcome = Readonly<{ redirect: string } | { failed: string; attached: boolean }>;

/** A server that took the call answers within this: with a welcome, a redirect or an error. */
const WELCOME_MS = 15_000;
/** A token lives for 600 s and is renewed in its file at 480. */
const TOKEN_REFRESH_MS = 60_000;

type BulkCall = ClientDuplexStream<BulkRequest, BulkResponse>;

export async function attach(options: Attach, signal: AbortSignal): Promise<Outcome> {
  const { client, bulkClient, metadata, broker } = options;
  const call = client.attach(metadata);
  // Whoever iterates hears of errors; after that nobody does, and an unheard one ends the process.
  call.on('error', () => undefined);
  let ended = 'the stream ended';
  const end = (why: string) => {
    ended = why;
    call.cancel();
  };
  const abort = () => end('stopped');
  signal.addEventListener('abort', abort, { once: true });
  const deadline = setTimeout(() => end(`no welcome within ${WELCOME_MS} ms`), WELCOME_MS);
  const sender = senderOf(call);
  const refresh = setInterval(() => {
    void options.readToken().then(
      (token) => sender.send({ $case: 'token', value: { token } }),
      () => undefined,
    );
  }, TOKEN_REFRESH_MS);
  let link: (TurnsLink & { bulk: BulkCall }) | undefined;
  try {
    sender.send({ $case: 'hello', value: broker.hello() });
    for await (const response of call as AsyncIterable<AttachResponse>) {
      sender.seen(response.seq);
      const { message } = response;
      if (message?.$case === 'redirect') return { redirect: message.value.address };
      if (message?.$case === 'welcome' && link === undefined) {
        clearTimeout(deadline);
        if (message.value.protocol !== 1)
          return { failed: `the owner speaks protocol ${message.value.protocol}, we speak 1`, attached: false };
        metadata.set('lathe-attach', message.value.attach);
        const bulk = bulkClient.bulk(metadata);
        bulk.on('error', () => undefined);
        link = { send: sender.send, bulk, content: (content) => write(bulk, { content }) };
        if (!broker.attachTurns(link, message.value))
          return { failed: 'this owner is older than one that was obeyed before', attached: false };
        // Without bulk nothing can be hydrated: start over with both.
        void receiveBulk(bulk, broker).then((why) => end(`bulk: ${why}`));
      } else if (message !== undefined && link !== undefined) await broker.fromTurns(message);
    }
  } catch (error) {
    ended = ended === 'the stream ended' ? (error instanceof Error ? error.message : String(error)) : ended;
  } finally {
    clearTimeout(deadline);
    clearInterval(refresh);
    signal.removeEventListener('abort', abort);
    if (link !== undefined) {
      broker.detachTurns(link);
      link.bulk.cancel();
    }
    call.cancel();
  }
  return { failed: ended, attached: link !== undefined };
}

/** @returns why it ended */
async function receiveBulk(bulk: BulkCall, broker: Broker): Promise<string> {
  try {
    for await (const { content } of bulk as AsyncIterable<BulkResponse>)
      if (content !== undefined) await broker.contentFromTurns(content);
    return 'the stream ended';
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

/** Numbers the messages of one attach. What is written is bounded by the owner's credits. */
function senderOf(call: ClientDuplexStream<AttachRequest, AttachResponse>) {
  let seq = 0n;
  let ack = 0n;
  return {
    send: (message: Up) => {
      if (!call.destroyed) call.write({ seq: (seq += 1n), ack, message });
    },
    seen: (n: bigint) => void (ack = n),
  };
}

/** @returns undefined when more may be written at once */
function write(stream: BulkCall, message: BulkRequest): Promise<void> | undefined {
  if (stream.destroyed || (stream.write(message) && !stream.writableNeedDrain)) return undefined;
  return new Promise<void>((resolve) => {
    const done = () => {
      stream.off('drain', done).off('close', done).off('error', done);
      resolve();
    };
    stream.once('drain', done).once('close', done).once('error', done);
  });
}
