/** A P-256 authority and its leaves (CONTRACTS 8). Pure but for randomness; the clock is an input. */
// The library under x509 needs its polyfill first.
// oxlint-disable-next-line import/no-unassigned-import
import 'reflect-metadata';
import { webcrypto } from 'node:crypto';
import * as x509 from '@peculiar/x509';

export type Pair = Readonly<{ certificate: string; key: string }>;
export type LeafRequest = Readonly<{ commonName: string; names: readonly string[]; addresses?: readonly string[] }>;

export const LEAF_DAYS = 90;
export const AUTHORITY_DAYS = 3_650;
const ALGORITHM = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' } as const;
const DAY_MS = 86_400_000;
/** Clocks of nodes differ a little. */
const SKEW_MS = 300_000;

x509.cryptoProvider.set(webcrypto as never);

export async function newAuthority(now: Date): Promise<Pair> {
  const keys = await webcrypto.subtle.generateKey(ALGORITHM, true, ['sign', 'verify']);
  const certificate = await x509.X509CertificateGenerator.createSelfSigned({
    name: 'CN=Lathe',
    serialNumber: serial(),
    notBefore: new Date(now.getTime() - SKEW_MS),
    notAfter: new Date(now.getTime() + AUTHORITY_DAYS * DAY_MS),
    signingAlgorithm: ALGORITHM,
    keys: keys as never,
    extensions: [
      new x509.BasicConstraintsExtension(true, 0, true),
      new x509.KeyUsagesExtension(x509.KeyUsageFlags.keyCertSign | x509.KeyUsageFlags.cRLSign, true),
    ],
  });
  return { certificate: certificate.toString('pem'), key: await pem(keys.privateKey) };
}

/** For serving and for dialling alike. */
export async function issueLeaf(authority: Pair, request: LeafRequest, now: Date): Promise<Pair> {
  const issuer = new x509.X509Certificate(authority.certificate);
  const signingKey = await webcrypto.subtle.importKey(
    'pkcs8',
    x509.PemConverter.decode(authority.key)[0] ?? new ArrayBuffer(0),
    ALGORITHM,
    false,
    ['sign'],
  );
  const keys = await webcrypto.subtle.generateKey(ALGORITHM, true, ['sign', 'verify']);
  const certificate = await x509.X509CertificateGenerator.create({
    subject: `CN=${request.commonName}`,
    issuer: issuer.subject,
    serialNumber: serial(),
    notBefore: new Date(now.getTime() - SKEW_MS),
    notAfter: new Date(now.getTime() + LEAF_DAYS * DAY_MS),
    signingAlgorithm: ALGORITHM,
    publicKey: keys.publicKey as never,
    signingKey: signingKey as never,
    extensions: [
      new x509.BasicConstraintsExtension(false, undefined, true),
      new x509.KeyUsagesExtension(x509.KeyUsageFlags.digitalSignature, true),
      new x509.ExtendedKeyUsageExtension([x509.ExtendedKeyUsage.serverAuth, x509.ExtendedKeyUsage.clientAuth]),
      new x509.SubjectAlternativeNameExtension([
        ...request.names.map((value) => ({ type: 'dns' as const, value })),
        ...(request.addresses ?? []).map((value) => ({ type: 'ip' as const, value })),
      ]),
    ],
  });
  return { certificate: certificate.toString('pem'), key: await pem(keys.privateKey) };
}

/** Renewed at two thirds of its life, or when it is not what it should be. */
export function needsRenewal(certificate: string, authority: string, now: Date): boolean {
  try {
    const leaf = new x509.X509Certificate(certificate);
    const life = leaf.notAfter.getTime() - leaf.notBefore.getTime();
    return (
      leaf.issuer !== new x509.X509Certificate(authority).subject ||
      now.getTime() > leaf.notBefore.getTime() + (life * 2) / 3
    );
  } catch {
    return true;
  }
}

async function pem(key: webcrypto.CryptoKey): Promise<string> {
  return x509.PemConverter.encode(await webcrypto.subtle.exportKey('pkcs8', key), 'PRIVATE KEY');
}

/** Positive, 16 bytes. */
function serial(): string {
  const bytes = Buffer.from(webcrypto.getRandomValues(new Uint8Array(16)));
  bytes[0] = (bytes[0] ?? 0) & 0x7f;
  return bytes.toString('hex');
}
