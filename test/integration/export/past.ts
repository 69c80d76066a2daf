import type { Step } from './world.ts';

/** One of everything. */
export const PAST: readonly Step[] = [
  {
    do: 'write',
    origin: 'api',
    writes: [
      { path: '/run.sh', what: { kind: 'regular', content: '#!/bin/sh', executable: true } },
      { path: '/é 🦀\n"x".txt', what: { kind: 'regular', content: 'odd', executable: false } },
      { path: `/${'x'.repeat(255)}`, what: { kind: 'regular', content: 'long', executable: false } },
      { path: '/link', what: { kind: 'symlink', target: '/etc/passwd' } },
      { path: '/loop', what: { kind: 'symlink', target: 'loop' } },
      { path: '/dangling', what: { kind: 'symlink', target: 'z'.repeat(300) } },
      { path: '/to-folder', what: { kind: 'symlink', target: 'a' } },
      { path: '/empty', what: { kind: 'directory' } },
      { path: '/a/b', what: { kind: 'regular', content: 'was here', executable: false } },
    ],
  },
  {
    do: 'run',
    output: 'out'.repeat(5_000),
    turn: true,
    writes: [{ path: '/a', what: { kind: 'regular', content: 'now a file', executable: false } }],
  },
  { do: 'log', payloads: [{ big: 'p'.repeat(20_000) }, { small: [1, 1.5, null, 'é'] }] },
  { do: 'value', key: 'k', value: new Uint8Array([0, 1, 255]) },
  { do: 'turn', phase: 'Completed', answer: 'done' },
];
