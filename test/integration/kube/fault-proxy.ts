/** A TCP proxy before the API server that cuts, delays, corrupts and swallows what the server sends. TLS ends here. */
import { createServer, connect as tlsConnect, type TLSSocket } from 'node:tls';
import type { KubeConfig } from '@kubernetes/client-node';
import { issueLeaf, newAuthority } from '../../../operator/controllers/certificate-authority.ts';

export type Faults = {
  /** Ends the connection after this many bytes from the server. */
  cutAfterBytes?: number | undefined;
  /** Swallows everything from the server from now on; connections stay open. */
  silent?: boolean;
  /** Replaces a byte of each piece from the server. */
  corrupt?: boolean;
  delayMs?: number;
};
export type FaultProxy = AsyncDisposable &
  Readonly<{ url: string; ca: string; faults: Faults; connections(): number; dropAll(): void }>;

export async function startFaultProxy(kubeConfig: KubeConfig): Promise<FaultProxy> {
  const cluster = kubeConfig.getCurrentCluster();
  const user = kubeConfig.getCurrentUser();
  const server = new URL(cluster?.server ?? '');
  const authority = await newAuthority(new Date());
  const leaf = await issueLeaf(
    authority,
    { commonName: 'proxy', names: ['localhost'], addresses: ['127.0.0.1'] },
    new Date(),
  );
  const faults: Faults = {};
  const open = new Set<TLSSocket>();
  let total = 0;
  const proxy = createServer({ cert: leaf.certificate, key: leaf.key, ALPNProtocols: ['http/1.1'] }, (client) => {
    total += 1;
    let passed = 0;
    // The client's certificate can't be passed on, so the proxy shows its own copy.
    const upstream = tlsConnect({
      host: server.hostname,
      port: Number(server.port || 443),
      ca: Buffer.from(cluster?.caData ?? '', 'base64'),
      cert: Buffer.from(user?.certData ?? '', 'base64'),
      key: Buffer.from(user?.keyData ?? '', 'base64'),
      ALPNProtocols: ['http/1.1'],
    });
    open.add(client);
    const end = () => {
      open.delete(client);
      client.destroy();
      upstream.destroy();
    };
    for (const socket of [client, upstream]) socket.on('error', end).on('close', end);
    client.pipe(upstream);
    upstream.on('data', (bytes: Buffer) => {
      if (faults.silent === true) return;
      const pass = () => {
        let out = bytes;
        if (faults.corrupt === true) {
          out = Buffer.from(bytes);
          out[Math.floor(out.length / 2)] = 0x7e;
        }
        const room = faults.cutAfterBytes === undefined ? out.length : Math.max(0, faults.cutAfterBytes - passed);
        passed += out.length;
        if (!client.destroyed) client.write(out.subarray(0, room));
        if (room < out.length) end();
      };
      if (faults.delayMs === undefined) pass();
      else setTimeout(pass, faults.delayMs);
    });
  });
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  const address = proxy.address();
  if (typeof address !== 'object' || address === null) throw new Error('no address');
  const dropAll = () => {
    for (const socket of open) socket.destroy();
  };
  return {
    url: `https://127.0.0.1:${address.port}`,
    ca: authority.certificate,
    faults,
    connections: () => total,
    dropAll,
    [Symbol.asyncDispose]: async () => {
      dropAll();
      await new Promise((resolve) => proxy.close(resolve));
    },
  };
}
