/** NOTIFY as a hint: what comes wakes somebody early; what is lost is found by looking. */
import { setTimeout as delay } from 'node:timers/promises';
import { Client } from 'pg';

export type Channel = 'lathe_turn' | 'lathe_sandbox' | 'lathe_projection';

/** Until the signal aborts. `wake` is also called after each reconnect, since notifications may have been missed. */
export async function listen(
  url: string,
  channels: readonly Channel[],
  wake: (channel: Channel, payload: string) => void,
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    const client = new Client({ connectionString: url, application_name: 'lathe listen', keepAlive: true });
    const ended = new Promise<void>((resolve) => {
      client.once('end', resolve);
      client.once('error', () => resolve());
      signal.addEventListener('abort', () => resolve(), { once: true });
    });
    try {
      await client.connect();
      client.on('notification', ({ channel, payload }) => wake(channel as Channel, payload ?? ''));
      for (const channel of channels) await client.query(`LISTEN ${channel}`);
      for (const channel of channels) wake(channel, '');
      await ended;
    } catch {
      // Polling goes on meanwhile; the next connection says when the hints are back.
    }
    await client.end().catch(() => undefined);
    await delay(1_000, undefined, { signal }).catch(() => undefined);
  }
}
