/** Who is at the other end of a connection, by its client certificate. */
import { X509Certificate } from 'node:crypto';
import type { DetailedPeerCertificate, TLSSocket } from 'node:tls';

/** Between a client and its authority. */
const MAX_DEPTH = 8;
/** Of a connection, for the authorities that it was asked about last. */
const known = new WeakMap<TLSSocket, Readonly<{ authorities: string; name: string | undefined }>>();

/**
 * The common name of a client certificate that one of these authorities signed; undefined: there is none, or it has
 * several. The authorities are those of now: the connection may be older than they are, or from before they were known,
 * when TLS takes the certificate of any authority of the system.
 */
export function commonNameUnder(socket: TLSSocket, authorities: string): string | undefined {
  if (!socket.authorized) return undefined;
  const before = known.get(socket);
  if (before?.authorities === authorities) return before.name;
  const peer = socket.getPeerCertificate(true);
  const name: unknown = peer.subject?.CN;
  const isTrusted = leadsTo(chainOf(peer), certificatesOf(authorities));
  const answer = { authorities, name: isTrusted && typeof name === 'string' ? name : undefined };
  known.set(socket, answer);
  return answer.name;
}

/** By signature: an authority and the one before it often have the same name. Usage and dates TLS has looked at. */
export function leadsTo([leaf, ...sent]: readonly X509Certificate[], authorities: readonly X509Certificate[]): boolean {
  for (let at = leaf, depth = 0; at !== undefined && depth < MAX_DEPTH; depth += 1) {
    const signed = at;
    const signs = (by: X509Certificate) => signed.checkIssued(by) && signed.verify(by.publicKey);
    if (authorities.some(signs)) return true;
    at = sent.find((other) => other.ca && signs(other));
  }
  return false;
}

export function certificatesOf(pem: string): readonly X509Certificate[] {
  const blocks = pem.match(/-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g) ?? [];
  return blocks.map((block) => new X509Certificate(block));
}

/** As it was sent, the client's own first. */
function chainOf(peer: DetailedPeerCertificate): readonly X509Certificate[] {
  const chain: X509Certificate[] = [];
  const seen = new Set<DetailedPeerCertificate>();
  // A root is its own issuer.
  for (let at: DetailedPeerCertificate | undefined = peer; at?.raw !== undefined && !seen.has(at);) {
    seen.add(at);
    chain.push(new X509Certificate(at.raw));
    at = at.issuerCertificate;
  }
  return chain;
}
