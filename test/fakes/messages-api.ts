/** A server that speaks the Messages API on the wire, on script: replies, errors, broken and silent streams. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';

export type Step =
  | Readonly<{
      kind: 'reply';
      text?: string;
      tools?: readonly Readonly<{ id: string; name: string; input: object }>[];
      usage?: Readonly<{ input: number; output: number; cacheRead?: number }>;
    }>
  | Readonly<{ kind: 'refusal' }>
  | Readonly<{ kind: 'status'; status: number; retryAfter?: number }>
  /** An `error` event in the middle of a stream that began well. */
  | Readonly<{ kind: 'errorEvent' }>
  /** The connection is cut in the middle of a stream. */
  | Readonly<{ kind: 'cut' }>
  /** Headers, a first event, and then nothing. */
  | Readonly<{ kind: 'silence' }>;
export type Asked = Readonly<{ headers: IncomingMessage['headers']; body: Record<string, unknown> }>;
export type MessagesApi = AsyncDisposable & Readonly<{ baseURL: string; asked: readonly Asked[] }>;

/** Each request takes the next step; after the last one every request is refused with 500. */
export async function startMessagesApi(steps: readonly Step[]): Promise<MessagesApi> {
  const asked: Asked[] = [];
  const open = new Set<ServerResponse>();
  const server = createServer((request, response) => {
    void (async () => {
      const chunks: Buffer[] = [];
      for await (const chunk of request as AsyncIterable<Buffer>) chunks.push(chunk);
      const step = steps[asked.length] ?? { kind: 'status', status: 500 };
      asked.push({
        headers: request.headers,
        body: JSON.parse(Buffer.concat(chunks).toString('utf8')) as Record<string, unknown>,
      });
      open.add(response);
      response.once('close', () => open.delete(response));
      play(step, response);
    })();
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  if (typeof address !== 'object' || address === null) throw new Error('no address');
  return {
    baseURL: `http://127.0.0.1:${address.port}`,
    asked,
    [Symbol.asyncDispose]: async () => {
      for (const response of open) response.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

function play(step: Step, response: ServerResponse): void {
  if (step.kind === 'status') {
    const body = { type: 'error', error: { type: 'api_error', message: `scripted ${step.status}` } };
    response.writeHead(step.status, {
      'content-type': 'application/json',
      ...(step.retryAfter === undefined ? {} : { 'retry-after': String(step.retryAfter) }),
    });
    return void response.end(JSON.stringify(body));
  }
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  const send = (type: string, data: object) =>
    void response.write(`event: ${type}\ndata: ${JSON.stringify({ type, ...data })}\n\n`);
  const usage = step.kind === 'reply' ? step.usage : undefined;
  send('message_start', {
    message: {
      ...{
        id: 'msg_1',
        type: 'message',
        role: 'assistant',
        model: 'scripted',
        content: [],
        stop_reason: null,
        stop_sequence: null,
      },
      usage: {
        input_tokens: usage?.input ?? 10,
        output_tokens: 1,
        cache_read_input_tokens: usage?.cacheRead ?? 0,
        cache_creation_input_tokens: 0,
      },
    },
  });
  send('ping', {});
  if (step.kind === 'silence') return;
  if (step.kind === 'errorEvent') {
    send('error', { error: { type: 'overloaded_error', message: 'Overloaded' } });
    return void response.end();
  }
  if (step.kind === 'cut') {
    send('content_block_start', { index: 0, content_block: { type: 'text', text: '' } });
    send('content_block_delta', { index: 0, delta: { type: 'text_delta', text: 'half a ' } });
    return void setImmediate(() => response.destroy());
  }
  if (step.kind === 'refusal') {
    send('message_delta', { delta: { stop_reason: 'refusal', stop_sequence: null }, usage: { output_tokens: 1 } });
    send('message_stop', {});
    return void response.end();
  }
  let index = 0;
  if (step.text !== undefined) {
    send('content_block_start', { index, content_block: { type: 'text', text: '' } });
    for (const piece of step.text.match(/.{1,5}/gsu) ?? [])
      send('content_block_delta', { index, delta: { type: 'text_delta', text: piece } });
    send('content_block_stop', { index });
    index += 1;
  }
  for (const tool of step.tools ?? []) {
    send('content_block_start', {
      index,
      content_block: { type: 'tool_use', id: tool.id, name: tool.name, input: {} },
    });
    for (const piece of JSON.stringify(tool.input).match(/.{1,7}/gsu) ?? [])
      send('content_block_delta', { index, delta: { type: 'input_json_delta', partial_json: piece } });
    send('content_block_stop', { index });
    index += 1;
  }
  send('message_delta', {
    delta: { stop_reason: step.tools === undefined ? 'end_turn' : 'tool_use', stop_sequence: null },
    usage: { output_tokens: usage?.output ?? 20 },
  });
  send('message_stop', {});
  response.end();
}
