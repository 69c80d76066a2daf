/** The owner's side of the sandbox protocol, on the wire and nothing behind it: a test says every message itself. */
import { connect, createServer, type AddressInfo, type Socket } from 'node:net';
import { Server, ServerCredentials, type ServerDuplexStream } from '@grpc/grpc-js';
import { issueLeaf, newAuthority } from '../../../operator/controllers/certificate-authority.ts';
import {
  SandboxServiceService,
  type AttachRequest,
  type AttachResponse,
  type BulkRequest,
  type BulkResponse,
  type Content,
  type Hello,
  type Resume,
  type SandboxServiceServer,
} from '../../../proto/gen/lathe/sandbox/v1/sandbox.ts';

export type Up = NonNullable<AttachRequest['message']>;
export type Down = NonNullable<AttachResponse['message']>;
type Of<C extends Up['$case']> = Extract<Up, { $case: C }>['value'];

export const TLS_NAME = 'lathe-turns.test.svc';
const DEADLINE_MS = 20_000;

/** One attach. What it received is kept, in order. */
export class Attached {
  readonly hello: Hello;
  readonly token: string;
  readonly received: Up[] = [];
  readonly contents: Content[] = [];
  readonly acks: bigint[] = [];
  readonly #call: ServerDuplexStream<AttachRequest, AttachResponse>;
  #bulk: ServerDuplexStream<BulkRequest, BulkResponse> | undefined;
  #seq = 0n;
  readonly #waiting = new Set<() => void>();
  ended = false;

  constructor(hello: Hello, token: string, call: ServerDuplexStream<AttachRequest, AttachResponse>) {
    this.hello = hello;
    this.token = token;
    this.#call = call;
  }

  /** Resolves once the bulk stream is there too. */
  async welcome(
    owner: { epoch?: bigint; incarnation?: bigint; protocol?: number } = {},
    resume: Resume[] = [],
  ): Promise<this> {
    const { epoch = 1n, incarnation = 1n, protocol = 1 } = owner;
    this.send({ $case: 'welcome', value: { protocol, attach: 'attach', incarnation, epoch, resume } });
    await this.until(() => this.#bulk ?? (this.ended ? true : undefined), 'a bulk stream');
    return this;
  }

  send(message: Down): void {
    this.#call.write({ seq: (this.#seq += 1n), ack: 0n, message });
  }

  give(content: Content): void {
    this.#bulk?.write({ content });
  }

  /** What looks done, as soon as it does. @throws with what was received, when it takes too long */
  async until<T>(look: () => T | undefined, what: string, deadlineMs = DEADLINE_MS): Promise<T> {
    const deadline = performance.now() + deadlineMs;
    for (;;) {
      const found = look();
      if (found !== undefined) return found;
      const left = deadline - performance.now();
      if (left <= 0) throw new Error(`no ${what}; received: ${this.received.map(brief).join(' ')}`);
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, Math.min(left, 200));
        const wake = () => {
          clearTimeout(timer);
          this.#waiting.delete(wake);
          resolve();
        };
        this.#waiting.add(wake);
      });
    }
  }

  /** The first that was received of this kind. */
  async first<C extends Up['$case']>(kind: C, which: (value: Of<C>) => boolean = () => true): Promise<Of<C>> {
    return await this.until(() => this.all(kind).find(which), kind);
  }

  all<C extends Up['$case']>(kind: C): Of<C>[] {
    return this.received.flatMap((up) => (up.$case === kind ? [up.value as Of<C>] : []));
  }

  took(up: AttachRequest): void {
    if (up.message !== undefined) this.received.push(up.message);
    this.acks.push(up.ack);
    this.changed();
  }

  changed(): void {
    for (const wake of this.#waiting) wake();
  }

  setBulk(bulk: ServerDuplexStream<BulkRequest, BulkResponse>): void {
    this.#bulk = bulk;
    this.changed();
  }

  end(): void {
    this.ended = true;
    this.changed();
  }
}

export type FakeTurns = AsyncDisposable &
  Readonly<{
    port: number;
    ca: string;
    /** The next attach that says hello, of those that nobody took yet. */
    next(): Promise<Attached>;
    /** How many dialled. */
    dialled(): number;
    /** As a network does: every connection ends, without a word. */
    cut(): void;
  }>;

export async function fakeTurns(port = 0, tls = newTls()): Promise<FakeTurns> {
  const { ca, certificate, key } = await tls;
  const came: Attached[] = [];
  const taken: ((one: Attached) => void)[] = [];
  let dialled = 0;
  let newest: Attached | undefined;
  const service: SandboxServiceServer = {
    attach: (call) => {
      dialled += 1;
      let one: Attached | undefined;
      call.on('error', () => one?.end());
      call.on('end', () => {
        one?.end();
        call.end();
      });
      call.on('close', () => one?.end());
      call.on('data', (request: AttachRequest) => {
        if (one !== undefined) return one.took(request);
        if (request.message?.$case !== 'hello') return call.destroy();
        one = newest = new Attached(request.message.value, String(call.metadata.get('authorization')[0]), call);
        const take = taken.shift();
        if (take === undefined) came.push(one);
        else take(one);
      });
    },
    bulk: (call) => {
      const one = newest;
      call.on('error', () => undefined);
      call.on('end', () => call.end());
      call.on('data', ({ content }: BulkRequest) => {
        if (content !== undefined) one?.contents.push(content);
        one?.changed();
      });
      one?.setBulk(call);
    },
  };
  const server = new Server({ 'grpc.max_receive_message_length': 512 * 1024 });
  server.addService(SandboxServiceService, service);
  const pair = { cert_chain: Buffer.from(certificate), private_key: Buffer.from(key) };
  const credentials = ServerCredentials.createSsl(Buffer.from(ca), [pair], false);
  const behind = await new Promise<number>((resolve, reject) =>
    server.bindAsync('127.0.0.1:0', credentials, (error, at) => (error === null ? resolve(at) : reject(error))),
  );
  const wires = new Set<Socket>();
  const proxy = createServer((near) => {
    const far = connect(behind, '127.0.0.1');
    for (const [socket, other] of [
      [near, far],
      [far, near],
    ] as const) {
      wires.add(socket);
      socket
        .on('error', () => undefined)
        .on('close', () => {
          wires.delete(socket);
          other.destroy();
        });
      socket.pipe(other);
    }
  });
  await new Promise<void>((resolve) => proxy.listen(port, '127.0.0.1', resolve));
  return {
    port: (proxy.address() as AddressInfo).port,
    ca,
    dialled: () => dialled,
    cut: () => {
      for (const wire of wires) wire.destroy();
    },
    next: async () => {
      const one = came.shift();
      if (one !== undefined) return one;
      return await new Promise((resolve, reject) => {
        const timer = setTimeout(() => reject(new Error(`nobody attached; ${dialled} dialled`)), DEADLINE_MS);
        taken.push((next) => {
          clearTimeout(timer);
          resolve(next);
        });
      });
    },
    [Symbol.asyncDispose]: async () => {
      for (const wire of wires) wire.destroy();
      proxy.close();
      server.forceShutdown();
    },
  };
}

/** Several servers may share one, as replicas do. */
export async function newTls(): Promise<{ ca: string; certificate: string; key: string }> {
  const authority = await newAuthority(new Date());
  const names = { commonName: 'lathe-turns', names: [TLS_NAME], addresses: [] };
  const { certificate, key } = await issueLeaf(authority, names, new Date());
  return { ca: authority.certificate, certificate, key };
}

function brief(up: Up): string {
  return up.$case === 'output' ? `output@${up.value.offset}` : up.$case;
}
