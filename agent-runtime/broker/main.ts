/** The broker: beside the guest, in a container of its own. Holds the token, the journal and the stream to the owner. */
import { Broker } from './broker.ts';
import { serveGuest } from './guest-server.ts';
import { Journal } from './journal.ts';
import { keepAttached } from './turns-link.ts';

const need = (name: string): string => {
  const value = process.env[name];
  if (value === undefined || value === '') throw new Error(`${name} is not set; the operator sets it in the pod`);
  return value;
};

const stop = new AbortController();
for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, () => stop.abort());

const log = (line: string) => void process.stderr.write(`broker: ${line}\n`);
const broker = new Broker(need('LATHE_SANDBOX'), new Journal(need('LATHE_STATE_DIR')));
const server = await serveGuest(need('LATHE_SOCKET'), broker, log);
const target = {
  address: need('LATHE_TURNS_ADDRESS'),
  tlsName: need('LATHE_TURNS_TLS_NAME'),
  ca: Buffer.from(need('LATHE_TURNS_CA')),
  tokenFile: need('LATHE_TOKEN_FILE'),
};
await keepAttached(target, broker, log, stop.signal);
server.close();
process.exit(0);
