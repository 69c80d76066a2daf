/**
 * Whom we call for others (CONTRACTS 8): a host that somebody else named is looked up once, its addresses are held
 * against the rule, and the caller connects to these addresses and no other, so that a second answer changes nothing.
 */
import { lookup as lookupHost } from 'node:dns/promises';
import { BlockList, isIP } from 'node:net';
import { PermanentError, TransientError } from './errors.ts';

export type Outbound = Readonly<{
  /** The addresses to use for this host. @throws PermanentError Forbidden, TransientError when it can't be looked up */
  resolve(host: string): Promise<readonly string[]>;
  /** Whether the installation lists this host: then it may also be called without TLS. */
  isListed(host: string): boolean;
}>;
type Lookup = (host: string) => Promise<readonly string[]>;

/** Not of the public Internet, or of a cloud's own machinery. */
const FORBIDDEN_V4 = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '168.63.129.16/32', // Azure's host
  '169.254.0.0/16', // link-local: metadata
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
];
/** IPv6 the other way round: global unicast, without what only carries another protocol's addresses. */
const PUBLIC_V6 = ['2000::/3'];
const FORBIDDEN_V6 = ['2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20'];
/** Networks that reach IPv4 through a translator resolve to these; what counts is the address inside. */
const NAT64 = ['64:ff9b::/96'];

const forbiddenV4 = blockList(FORBIDDEN_V4);
const publicV6 = blockList(PUBLIC_V6);
const forbiddenV6 = blockList(FORBIDDEN_V6);
const nat64 = blockList(NAT64);

/** @param listed host names, addresses and networks (CIDR) that may be called although they are private */
export function createOutbound(listed: readonly string[], lookup: Lookup = system): Outbound {
  const networks = blockList(listed.filter((entry) => isNetwork(entry)));
  const names = new Set(listed.filter((entry) => !isNetwork(entry)).map(plain));
  return {
    isListed: (host) => names.has(plain(host)) || isListedAddress(networks, plain(host)),
    resolve: async (host) => {
      const name = plain(host);
      const addresses = isIP(name) === 0 ? await lookup(name).catch((error: unknown) => fail(name, error)) : [name];
      if (addresses.length === 0) fail(name, undefined);
      if (names.has(name)) return addresses;
      const refused = addresses.find((a) => !isPublic(a) && !isListedAddress(networks, a));
      if (refused !== undefined) {
        const seen = refused === name ? `${name} is` : `${name} resolves to ${refused},`;
        throw new PermanentError(
          'Forbidden',
          `${seen} no public address; who runs Lathe can list it in the chart's seed.allowedPrivateHosts`,
        );
      }
      return addresses;
    },
  };
}

/** Whether an address is of the public Internet. Pure. */
export function isPublic(address: string): boolean {
  if (isIP(address) === 4) return !forbiddenV4.check(address, 'ipv4');
  if (isIP(address) !== 6) return false;
  if (nat64.check(address, 'ipv6')) return isPublic(embedded(address));
  return publicV6.check(address, 'ipv6') && !forbiddenV6.check(address, 'ipv6');
}

/** The last four bytes, as IPv4. */
function embedded(address: string): string {
  // The URL parser writes an IPv6 address in its one form: the last two groups are hexadecimal.
  const groups = new URL(`http://[${address}]/`).hostname.slice(1, -1).split(':');
  const [high = 0, low = 0] = groups.slice(-2).map((g) => Number.parseInt(g === '' ? '0' : g, 16));
  return [high >> 8, high & 255, low >> 8, low & 255].join('.');
}

function isListedAddress(networks: BlockList, address: string): boolean {
  const family = isIP(address);
  return family !== 0 && networks.check(address, family === 4 ? 'ipv4' : 'ipv6');
}

function isNetwork(entry: string): boolean {
  return isIP(plain(entry.split('/')[0] ?? '')) !== 0;
}

function blockList(networks: readonly string[]): BlockList {
  const list = new BlockList();
  for (const network of networks) {
    const [address = '', prefix] = network.split('/');
    const family = isIP(plain(address)) === 4 ? 'ipv4' : 'ipv6';
    list.addSubnet(plain(address), Number(prefix ?? (family === 'ipv4' ? 32 : 128)), family);
  }
  return list;
}

/** As names are compared: small, without the brackets of a URL and the dot of the root. */
function plain(host: string): string {
  return host
    .toLowerCase()
    .replace(/^\[(.*)\]$/, '$1')
    .replace(/\.$/, '');
}

async function system(host: string): Promise<readonly string[]> {
  return (await lookupHost(host, { all: true })).map((a) => a.address);
}

function fail(host: string, cause: unknown): never {
  const code = cause instanceof Error && 'code' in cause ? String(cause.code) : 'no address';
  throw new TransientError('NotFound', `host ${host} can't be looked up (${code})`, { cause });
}
