/** Broker, guest and the way to the owner end at any moment; the result arrives once, or is lost and says so. */
import { randomUUID } from 'node:crypto';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ExecutionPhase, GuestFrame } from '../../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import { fakeTurns, newTls } from './fake-turns.ts';
import { file, told, WINDOW } from './owner.ts';
import { startRuntime } from './runtime.ts';
import { world, type World } from './world.ts';

const COMMAND = 'echo ran >> runs; echo begun; sleep 1.5; echo ended; echo x > made';

/** As an owner does that comes back: it waits for these, from where it has them. */
async function attachAgain(w: World, waitsFor: Record<string, number> = {}, epoch = 1n): Promise<void> {
  const attached = await w.turns.next();
  w.owner.attached = attached;
  const resume = Object.entries(waitsFor).map(([execution, offset]) => ({
    execution,
    outputOffset: BigInt(offset),
    outputCredit: BigInt(offset + WINDOW),
  }));
  await attached.welcome({ epoch }, resume);
}

/** A command that has begun. */
async function begun(w: World, command = COMMAND): Promise<string> {
  const execution = w.owner.dispatch(command);
  await w.owner.attached.first('output');
  return execution;
}

/** The broker has forgotten all that it was sent. */
async function settled(w: World): Promise<void> {
  const journal = () => readFileSync(join(w.runtime.folder, 'state/journal'));
  await w.owner.attached.until(() => openIn(journal()) === 0 || undefined, 'settling');
}

test('the broker is killed in the middle of a command: the command goes on, its result arrives once', async () => {
  await using w = await world();
  const execution = await begun(w);
  const { boot } = w.owner.attached.hello;
  await w.runtime.kill('broker');
  w.runtime.start('broker');
  await attachAgain(w, { [execution]: 0 });
  expect(w.owner.attached.hello).toMatchObject({
    boot,
    inventory: [{ execution, phase: ExecutionPhase.EXECUTION_PHASE_RUNNING, outputBytes: 6n }],
  });
  const ran = await w.owner.result(execution);
  expect(ran).toMatchObject({ stdout: 'begun\nended\n', finished: { exitCode: 0 } });
  expect(told(ran.changes)).toEqual(['+/made', '+/runs']);
  expect(w.owner.attached.all('finished')).toHaveLength(1);
  w.owner.settle(ran, 2n);
  expect((await w.owner.run('cat runs')).stdout).toBe('ran\n');
});

test('the command ends while the broker is away: what it printed meanwhile arrives too', async () => {
  await using w = await world();
  const execution = await begun(w, 'echo begun; sleep 0.5; seq 20000; touch ended');
  await w.runtime.kill('broker');
  await w.owner.attached.until(() => readdirSync(w.runtime.tree).includes('ended') || undefined, 'end', 10_000);
  w.runtime.start('broker');
  await attachAgain(w, { [execution]: 0 });
  const ran = await w.owner.result(execution);
  expect(ran.stdout).toBe(`begun\n${Array.from({ length: 20_000 }, (_, i) => `${i + 1}\n`).join('')}`);
  expect(told(ran.changes)).toEqual(['+/ended']);
});

test('the broker is killed again and again under a flood: every byte arrives once, in order', async () => {
  await using w = await world();
  const lines = 400_000;
  const execution = w.owner.dispatch(`echo 0; sleep 0.3; seq ${lines}`, { outputCredit: 50_000n });
  let received = Buffer.alloc(0);
  for (const credit of [300_000, 700_000, 1_500_000]) {
    await w.owner.attached
      .until(() => w.owner.outputOf(execution).length > 10_000 || undefined, 'output', 5_000)
      .catch(() => undefined);
    await w.runtime.kill('broker');
    received = Buffer.concat([received, w.owner.outputOf(execution)]);
    w.runtime.start('broker');
    await attachAgain(w, { [execution]: received.length });
    w.owner.attached.send({ $case: 'credit', value: { execution, outputCredit: BigInt(credit) } });
  }
  const ran = await w.owner.result(execution);
  const all = Buffer.concat([received, w.owner.outputOf(execution)]).toString();
  expect(all).toBe(`0\n${Array.from({ length: lines }, (_, i) => `${i + 1}\n`).join('')}`);
  expect(ran.finished.outputBytes).toBe(BigInt(all.length));
});

test('O5: the way to the owner is cut in the middle: the command goes on, its result arrives once', async () => {
  await using w = await world();
  const execution = await begun(w);
  w.turns.cut();
  await attachAgain(w, { [execution]: 6 });
  const ran = await w.owner.result(execution);
  // From where the owner said, not from the start.
  expect(w.owner.attached.all('output')[0]?.offset).toBe(6n);
  expect(ran).toMatchObject({ stdout: 'ended\n', finished: { exitCode: 0, outputBytes: 12n } });
  expect(w.owner.attached.all('finished')).toHaveLength(1);
});

test('what is sent again keeps to the credit that the new owner gave', async () => {
  await using w = await world();
  const execution = w.owner.dispatch('head -c 3000000 /dev/zero');
  await w.owner.result(execution);
  w.turns.cut();
  const attached = await w.turns.next();
  w.owner.attached = attached;
  await attached.welcome({ epoch: 2n }, [{ execution, outputOffset: 0n, outputCredit: 100_000n }]);
  await attached.until(() => w.owner.outputOf(execution).length >= 100_000 || undefined, 'output');
  await expect(attached.until(() => attached.all('finished')[0], 'end', 700)).rejects.toThrow('no end');
  expect(w.owner.outputOf(execution).length).toBe(100_000);
  expect((await w.owner.result(execution)).stdout.length).toBe(3_000_000);
});

test('a result that was not settled survives the broker, and is gone once it is', async () => {
  await using w = await world();
  const ran = await w.owner.result(w.owner.dispatch('echo kept; echo x > made'));
  await w.runtime.kill('broker');
  w.runtime.start('broker');
  await attachAgain(w, { [ran.execution]: 0 });
  expect(w.owner.attached.hello.inventory).toMatchObject([{ phase: ExecutionPhase.EXECUTION_PHASE_FINISHED }]);
  const again = await w.owner.result(ran.execution);
  expect(again).toMatchObject({ stdout: 'kept\n', finished: { exitCode: 0 } });
  expect(told(again.changes)).toEqual(['+/made']);
  await w.owner.guest();
  w.owner.settle(again, 2n);
  expect((await w.owner.run('cat made')).stdout).toBe('x\n');
  await settled(w);
  await w.runtime.kill('broker');
  w.runtime.start('broker');
  expect((await w.turns.next()).hello.inventory).toEqual([]);
});

test('the guest is killed in the middle of a command: it is lost, and the next guest knows nothing of the tree', async () => {
  await using w = await world();
  const execution = await begun(w);
  await w.runtime.kill('guest');
  expect(
    await w.owner.attached.until(
      () =>
        w.owner.attached
          .all('guest')
          .slice(-1)
          .find((g) => !g.connected),
      'away',
    ),
  ).toBeDefined();
  w.runtime.start('guest');
  expect(await w.owner.attached.first('lost')).toMatchObject({ execution, reason: 'the work container ended' });
  const guest = w.owner.attached.all('guest').at(-1);
  expect(guest).toMatchObject({ connected: true, syncedVersion: 0n, facts: { synced: 'false' } });
  w.owner.settle({ execution }, 1n);
  await w.owner.sync([file('/a', 'a')], { to: 2n });
  expect((await w.owner.run('ls')).stdout).toBe('a\n');
});

test('the guest is killed once it has offered: the result stays, and contents that only it had are answered for', async () => {
  await using w = await world();
  const ran = await w.owner.result(w.owner.dispatch('head -c 100000 /dev/urandom > big; echo x > small'));
  await w.runtime.kill('guest');
  await w.owner.attached.until(
    () =>
      w.owner.attached
        .all('guest')
        .slice(-1)
        .find((g) => !g.connected),
    'away',
  );
  const big = ran.changes.find((entry) => entry.path === '/big');
  expect(await w.owner.take(big?.sha256 ?? Buffer.alloc(0))).toBeUndefined();
  w.runtime.start('guest');
  await w.owner.attached.until(() => w.owner.attached.all('guest').at(-1)?.connected || undefined, 'guest');
  expect(w.owner.attached.all('lost')).toEqual([]);
});

test('a dispatch that finds no guest waits for one', async () => {
  await using w = await world();
  await w.runtime.kill('guest');
  await w.owner.attached.until(
    () =>
      w.owner.attached
        .all('guest')
        .slice(-1)
        .find((g) => !g.connected),
    'away',
  );
  const execution = w.owner.dispatch('echo never');
  w.runtime.start('guest');
  // Its tree is unknown, so the command is answered for and does not run.
  expect((await w.owner.result(execution)).finished.error).toMatch(/version unknown/);
});

test('a sync that loses its guest is answered', async () => {
  await using w = await world();
  w.owner.sendSync([w.owner.stored('/big', Buffer.alloc(50_000))], { to: 2n });
  await w.owner.attached.first('want');
  await w.runtime.kill('guest');
  expect(await w.owner.attached.first('synced', (s) => s.version === 2n)).toMatchObject({
    error: 'the work container is gone',
  });
});

test('F6: a sync that loses its owner half way is given up, and what its pages said is forgotten', async () => {
  await using w = await world();
  w.owner.sendSync([file('/old', 'old'), w.owner.stored('/big', Buffer.alloc(900_000, 1))], { to: 2n }, false);
  await w.owner.attached.first('want');
  w.turns.cut();
  await attachAgain(w, {}, 2n);
  expect(w.owner.attached.hello.guest?.facts['synced']).toBe('false');
  expect(await w.owner.sync([file('/new', 'new')], { to: 3n })).toMatchObject({ error: '' });
  expect((await w.owner.run('ls -A; cat new')).stdout).toBe('new\nnew');
});

test('an owner that waits for nothing: what ran is ended, its effects are not taken for a version', async () => {
  await using w = await world();
  const execution = await begun(w, 'echo x > made; echo begun; sleep 1004');
  w.turns.cut();
  await attachAgain(w, {}, 2n);
  expect(w.owner.attached.hello.inventory).toMatchObject([{ execution }]);
  expect(w.owner.attached.all('guest')[0]).toMatchObject({ connected: true, facts: { synced: 'false' } });
  await w.owner.sync([], { to: 2n });
  expect((await w.owner.run('ls; ps -eo args | grep -c "[s]leep 1004"')).stdout).toBe('0\n');
  expect(w.owner.attached.all('finished').map((f) => f.execution)).not.toContain(execution);
});

test('a settle that its guest never saw: the tree is compared before it is trusted', async () => {
  await using w = await world();
  const ran = await w.owner.result(w.owner.dispatch('echo refused > refused'));
  // The guest is stopped, so that what is sent stays in the socket that dies with the broker.
  const pids = readdirSync('/proc').filter((pid) => /^\d+$/.test(pid) && isGuestOf(pid, w.runtime.socket));
  for (const pid of pids) process.kill(Number(pid), 'SIGSTOP');
  w.owner.settle(ran, 1n);
  await settled(w);
  await w.runtime.kill('broker');
  for (const pid of pids) process.kill(Number(pid), 'SIGCONT');
  w.runtime.start('broker');
  await attachAgain(w);
  await w.owner.guest();
  const last = () => [w.owner.attached.hello.guest, ...w.owner.attached.all('guest')].at(-1);
  // Either it saw the settle before it saw its connection end, or it says that it does not know.
  const status = await w.owner.attached.until(() => (last()?.connected === true ? last() : undefined), 'guest');
  if (status?.facts['synced'] === 'true') expect(status.syncedVersion).toBe(1n);
  else await w.owner.sync([], { to: 2n });
});

test('only the highest owner is obeyed, by the next broker of the pod too', async () => {
  await using w = await world();
  w.turns.cut();
  await attachAgain(w, {}, 5n);
  expect(w.owner.attached.hello).toMatchObject({ incarnation: 1n, epoch: 1n });
  await w.runtime.kill('broker');
  w.runtime.start('broker');
  const older = await w.turns.next();
  expect(older.hello).toMatchObject({ incarnation: 1n, epoch: 5n });
  await older.welcome({ epoch: 4n });
  await older.until(() => older.ended || undefined, 'end');
  older.send({ $case: 'dispatch', value: dispatchOf('touch obeyed') });
  await attachAgain(w, {}, 5n);
  await w.owner.guest();
  w.turns.cut();
  const attached = await w.turns.next();
  await attached.welcome({ incarnation: 2n, epoch: 1n });
  expect(readdirSync(w.runtime.tree)).toEqual([]);
});

test('a redirect is followed, at most three times, then the Service is asked again', async () => {
  await using stack = new AsyncDisposableStack();
  const tls = newTls();
  const service = stack.use(await fakeTurns(0, tls));
  const other = stack.use(await fakeTurns(0, tls));
  stack.use(startRuntime({ turns: service, guest: false }));
  const to = (port: number) => ({
    $case: 'redirect' as const,
    value: { address: `127.0.0.1:${port}`, incarnation: 0n, epoch: 0n },
  });
  (await service.next()).send(to(other.port));
  for (let hop = 0; hop < 2; hop += 1) (await other.next()).send(to(other.port));
  // The fourth is one too many.
  (await other.next()).send(to(other.port));
  expect(other.dialled()).toBe(3);
  // To nowhere: three seconds at most, then back.
  (await service.next()).send(to(1));
  const owner = await (await service.next()).welcome();
  expect(owner.hello.sandbox).toBe('sandbox');
  expect(other.dialled()).toBe(3);
});

test('the token is read anew for each attach', async () => {
  await using w = await world();
  expect(w.owner.attached.token).toBe('Bearer first');
  writeFileSync(join(w.runtime.folder, 'token'), 'second\n');
  w.turns.cut();
  expect((await w.turns.next()).token).toBe('Bearer second');
});

test('an owner of another protocol is not obeyed', async () => {
  await using stack = new AsyncDisposableStack();
  const turns = stack.use(await fakeTurns());
  stack.use(startRuntime({ turns, guest: false }));
  const wrong = await turns.next();
  await wrong.welcome({ protocol: 2 });
  await wrong.until(() => wrong.ended || undefined, 'end');
  expect((await turns.next()).hello.protocolMax).toBe(1);
});

/** Executions that a journal has and has not seen settled. */
function openIn(journal: Buffer): number {
  const open = new Set<string>();
  for (let at = 0; at + 4 <= journal.length; at += 4 + journal.readUInt32BE(at)) {
    const { frame } = GuestFrame.decode(journal.subarray(at + 4, at + 4 + journal.readUInt32BE(at)));
    if (frame?.$case !== 'down') continue;
    const { message } = frame.value;
    if (message?.$case === 'dispatch') open.add(message.value.execution);
    if (message?.$case === 'settle') open.delete(message.value.execution);
  }
  return open.size;
}

function isGuestOf(pid: string, socket: string): boolean {
  try {
    return (
      readFileSync(`/proc/${pid}/environ`, 'utf8').includes(`LATHE_SOCKET=${socket}`) &&
      readFileSync(`/proc/${pid}/cmdline`, 'utf8').endsWith('guest/main.ts\0')
    );
  } catch {
    return false;
  }
}

function dispatchOf(command: string) {
  const none = { env: {}, timeoutMs: 1_000, graceMs: 100, stdin: Buffer.alloc(0), baseVersion: 1n };
  return { ...none, execution: randomUUID(), command, outputCredit: 0n, outputLimit: 0n, collect: undefined };
}
