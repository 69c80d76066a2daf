/** How many connections one address may have before it is known who it is (CONTRACTS 8). */
import type { Server } from 'node:https';
import type { Socket } from 'node:net';
import type { TLSSocket } from 'node:tls';

/**
 * What is over the limit is closed before it costs a handshake. A client whose certificate TLS has taken does not count:
 * behind the cluster's API server all come from one address, and whoever else opens connections must not keep it out.
 */
export function limitPerSource(server: Server, limit: number): void {
  const open = new Map<string, Set<number>>();
  const drop = (source: string, port: number) => {
    const ports = open.get(source);
    if (ports?.delete(port) === true && ports.size === 0) open.delete(source);
  };
  server.prependListener('connection', (socket: Socket) => {
    const { remoteAddress: source = '', remotePort: port = 0 } = socket;
    const ports = open.get(source) ?? new Set();
    if (ports.size >= limit) return void socket.destroy();
    open.set(source, ports.add(port));
    socket.once('close', () => drop(source, port));
  });
  server.on('secureConnection', (socket: TLSSocket) => {
    if (socket.authorized) drop(socket.remoteAddress ?? '', socket.remotePort ?? 0);
  });
}
