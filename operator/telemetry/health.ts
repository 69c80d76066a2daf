/** /healthz, /readyz and /metrics over plain HTTP, for the kubelet and Prometheus. */
import { createServer } from 'node:http';
import type { Registry } from 'prom-client';

export type Health = Readonly<{
  /** Undefined: ready. Else what is waited for. */
  ready: () => string | undefined | Promise<string | undefined>;
  registry: Registry;
}>;

/** @returns the port. Serves until the signal aborts. */
export async function serveHealth(port: number, health: Health, signal: AbortSignal): Promise<number> {
  const server = createServer((request, response) => {
    void answer(request.url ?? '').then(
      ({ status, body, type }) => response.writeHead(status, { 'content-type': type }).end(body),
      (error: unknown) => response.writeHead(500).end(String(error)),
    );
  });
  signal.addEventListener('abort', () => server.close(), { once: true });
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(port, resolve));
  const address = server.address();
  return typeof address === 'object' && address !== null ? address.port : port;

  async function answer(url: string): Promise<{ status: number; body: string; type: string }> {
    const type = 'text/plain; charset=utf-8';
    switch (url.split('?')[0]) {
      case '/healthz':
        return { status: 200, body: 'ok\n', type };
      case '/readyz': {
        const waiting = await health.ready();
        return waiting === undefined
          ? { status: 200, body: 'ok\n', type }
          : { status: 503, body: `${waiting}\n`, type };
      }
      case '/metrics':
        return { status: 200, body: await health.registry.metrics(), type: health.registry.contentType };
      default:
        return { status: 404, body: 'not found\n', type };
    }
  }
}
