/** One command between a real broker and a real guest. */
import { expect, test } from 'vitest';
import { WINDOW } from './owner.ts';
import { IS_ROOT } from './runtime.ts';
import { world } from './world.ts';

test('a command returns exit code and both streams, and what it costs is told', async () => {
  await using w = await world();
  const { finished, stdout, stderr } = await w.owner.run('echo out; echo err >&2; exit 7');
  expect({ stdout, stderr }).toEqual({ stdout: 'out\n', stderr: 'err\n' });
  expect(finished).toMatchObject({ exitCode: 7, signal: '', timedOut: false, cancelled: false, error: '', reaped: 0 });
  expect(finished.outputBytes).toBe(8n);
  expect((await w.owner.run('kill -9 $$')).finished).toMatchObject({ exitCode: undefined, signal: 'SIGKILL' });
});

test('EX14: it runs in the workspace with a plain environment, what the workspace adds, and nothing of ours', async () => {
  await using w = await world();
  const { stdout } = await w.owner.run('pwd; env | sort | grep -v ^_=', { env: { MINE: 'x y', CI: '2' } });
  const [cwd, ...env] = stdout.trim().split('\n');
  expect(cwd).toBe(w.runtime.tree);
  const names = env.map((line) => line.split('=')[0]);
  // What bash itself sets, and outside of a pod the mark that says whose processes they are.
  const others = names.filter(
    (name) => !['SHLVL', 'OLDPWD', ...(IS_ROOT ? [] : ['LATHE_EXECUTION'])].includes(name ?? ''),
  );
  expect(others).toEqual(['CI', 'HOME', 'LANG', 'MINE', 'PATH', 'PWD', 'TERM']);
  expect(env).toEqual(
    expect.arrayContaining(['CI=2', 'MINE=x y', 'LANG=C.UTF-8', 'TERM=dumb', `PWD=${w.runtime.tree}`]),
  );
});

test('its input is what was given, and empty where nothing was', async () => {
  await using w = await world();
  expect((await w.owner.run('wc -c', { stdin: Buffer.from('hello') })).stdout.trim()).toBe('5');
  expect((await w.owner.run('wc -c')).stdout.trim()).toBe('0');
  // Nobody reads it: a broken pipe is the command's own business.
  expect((await w.owner.run('true', { stdin: Buffer.alloc(200_000) })).finished.exitCode).toBe(0);
});

test('P1: at the deadline all its processes are gone within the grace, those in sessions of their own too', async () => {
  await using w = await world();
  const fled =
    'trap "" TERM; (setsid sh -c "trap \\"\\" TERM; sleep 1001" & ) ; setsid --fork sleep 1001; sleep 1001 & ';
  const ran = await w.owner.run(`${fled} echo begun; sleep 1001`, { timeoutMs: 700, graceMs: 300 });
  expect(ran.finished).toMatchObject({ timedOut: true, cancelled: false, error: '' });
  expect(ran.stdout).toBe('begun\n');
  expect(ran.finished.runMs).toBeGreaterThanOrEqual(690);
  expect((await w.owner.run('ps -eo args | grep -c "[s]leep 1001"')).stdout.trim()).toBe('0');
});

test('P1: at the deadline a command that listens to TERM ends by itself', async () => {
  await using w = await world();
  const ran = await w.owner.run('trap "echo tidied; exit 3" TERM; echo begun; while :; do sleep 0.05; done', {
    timeoutMs: 500,
    graceMs: 20_000,
  });
  expect(ran).toMatchObject({ stdout: 'begun\ntidied\n', finished: { timedOut: true, exitCode: 3 } });
});

test('P2: a background child that holds the streams does not hold the call, and does not outlive it', async () => {
  await using w = await world();
  const ran = await w.owner.run('(trap "" TERM; sleep 1002; echo late) & disown; echo early');
  expect(ran).toMatchObject({ stdout: 'early\n', finished: { exitCode: 0 } });
  expect(ran.finished.runMs).toBeLessThan(10_000);
  expect(ran.finished.reaped).toBeGreaterThan(0);
  expect((await w.owner.run('ps -eo args | grep -c "[s]leep 1002"')).stdout.trim()).toBe('0');
});

test('S5: processes that fork all the time end with their command', async () => {
  await using w = await world();
  // Bounded, since the machine is shared: each lives for a moment only, and has a successor by then.
  const hydra =
    'head() { (head) & }; for i in $(seq 8); do head; done; for i in $(seq 8); do (while :; do (:) & done) & done';
  const ran = await w.owner.run(`${hydra}; sleep 0.2; exit 0`);
  expect(ran.finished).toMatchObject({ exitCode: 0, error: '' });
  expect((await w.owner.run('ps -eo args | grep -c "[h]ydra\\|[h]ead()"')).stdout.trim()).toBe('0');
});

test('a command that is cancelled ends, and says so; one that is cancelled before it starts never runs', async () => {
  await using w = await world();
  const first = w.owner.dispatch('echo begun; sleep 1003');
  await w.owner.attached.first('output');
  w.owner.attached.send({ $case: 'cancel', value: { execution: first } });
  const ran = await w.owner.result(first);
  expect(ran).toMatchObject({ stdout: 'begun\n', finished: { cancelled: true, timedOut: false } });
  w.owner.settle(ran, 1n);
  const busy = w.owner.dispatch('sleep 0.5');
  const second = w.owner.dispatch('touch ran');
  w.owner.attached.send({ $case: 'cancel', value: { execution: second } });
  await w.owner.result(busy);
  expect(await w.owner.result(second)).toMatchObject({
    finished: { cancelled: true, exitCode: undefined },
    changes: [],
  });
});

test('what cannot be started says why, and what comes next runs', async () => {
  await using w = await world();
  expect((await w.owner.run('echo a\0b')).finished).toMatchObject({
    exitCode: undefined,
    error: expect.stringMatching(/null bytes/),
  });
  expect((await w.owner.run('true', { env: { 'A\0': 'x' } })).finished.error).not.toBe('');
  expect((await w.owner.run('true', { env: { A: 'x'.repeat(200_000) } })).finished.error).toMatch(/E2BIG/);
  expect((await w.owner.run('nothing-of-this-name')).finished).toMatchObject({ exitCode: 127, error: '' });
  expect((await w.owner.run('echo fine')).stdout).toBe('fine\n');
});

test('a command may be longer than one argument may be', async () => {
  await using w = await world();
  const text = 'é📄x'.repeat(40_000);
  const ran = await w.owner.run(`printf %s '${text}' | wc -c; echo "$# $0"; cat <<'END'\n${'y'.repeat(1_000)}\nEND`);
  expect(ran.stdout).toBe(`${Buffer.byteLength(text)}\n0 bash\n${'y'.repeat(1_000)}\n`);
});

test('a tree that is not at the version asked for: the command does not run', async () => {
  await using w = await world();
  const ran = await w.owner.result(w.owner.dispatch('touch ran', { baseVersion: 9n }));
  expect(ran).toMatchObject({
    finished: { exitCode: undefined, error: expect.stringContaining('version 1, not at 9') },
    changes: [],
  });
});

test('an execution that is sent twice runs once', async () => {
  await using w = await world();
  const execution = w.owner.dispatch('echo x >> ran; cat ran');
  w.owner.dispatch('echo x >> ran; cat ran', { execution });
  expect((await w.owner.result(execution)).stdout).toBe('x\n');
  expect((await w.owner.run('true')).finished.exitCode).toBe(0);
  expect(w.owner.attached.all('finished')).toHaveLength(2);
});

test('O4: a command that prints without end is slowed to its credit, and nobody holds what it printed', async () => {
  await using w = await world();
  const credit = 300_000;
  const execution = w.owner.dispatch('cat /dev/zero', { outputCredit: BigInt(credit), timeoutMs: 4_000, graceMs: 100 });
  await w.owner.attached.until(
    () => w.owner.outputOf(execution).length === credit || undefined,
    'all that credit is for',
  );
  w.owner.attached.send({ $case: 'credit', value: { execution, outputCredit: 450_001n } });
  await w.owner.attached.until(() => w.owner.outputOf(execution).length === 450_001 || undefined, 'the rest');
  // More does not come until it ends: the command sleeps in its write.
  await expect(w.owner.attached.until(() => w.owner.attached.all('finished')[0], 'end', 2_000)).rejects.toThrow(
    'no end',
  );
  expect(w.owner.outputOf(execution).length).toBe(450_001);
  const ran = await w.owner.result(execution);
  expect(ran.finished).toMatchObject({ timedOut: true });
  expect(Number(ran.finished.outputBytes)).toBe(w.owner.outputOf(execution).length);
  expect(Math.max(w.runtime.peakBytes('guest'), w.runtime.peakBytes('broker'))).toBeLessThan(200e6);
});

test('output over its limit is counted and dropped, and the command goes on', async () => {
  await using w = await world();
  const { finished, stdout } = await w.owner.run('head -c 3000000 /dev/zero; exit 5', { outputLimit: 1_000_000n });
  expect(stdout.length).toBe(1_000_000);
  expect(finished).toMatchObject({ exitCode: 5, outputBytes: 1_000_000n, droppedBytes: 2_000_000n });
});

test('O3: characters cut anywhere, and bytes that are none, arrive as they were', async () => {
  await using w = await world();
  const text = 'é📄'.repeat(60_000);
  const ran = await w.owner.run(`python3 -c "import sys; sys.stdout.write('é📄' * 60000)"`);
  expect(ran.stdout).toBe(text);
  const binary = await w.owner.run('printf "\\377\\376\\000A"');
  expect(w.owner.outputOf(binary.execution)).toEqual(Buffer.from([0xff, 0xfe, 0, 0x41]));
});

test('S5: a program that prints byte by byte does not send a message for each', async () => {
  await using w = await world();
  const execution = w.owner.dispatch('i=0; while [ $i -lt 20000 ]; do printf x; i=$((i+1)); done');
  const { stdout } = await w.owner.result(execution);
  expect(stdout).toBe('x'.repeat(20_000));
  expect(w.owner.attached.all('output').length).toBeLessThan(1_000);
});

test(`the end of an output comes, however long its credit takes`, async () => {
  await using w = await world();
  const execution = w.owner.dispatch('head -c 250000 /dev/zero', { outputCredit: 1_000n });
  await w.owner.attached.first('output');
  // Longer than what an open stream is waited for.
  await expect(w.owner.attached.until(() => w.owner.attached.all('finished')[0], 'end', 3_000)).rejects.toThrow(
    'no end',
  );
  const ran = await w.owner.result(execution);
  expect(ran.stdout.length).toBe(250_000);
  expect(ran.finished.outputBytes).toBe(250_000n);
  expect(WINDOW).toBeGreaterThan(250_000);
});
