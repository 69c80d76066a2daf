/** What a command is run with: which shell, which arguments, which environment. */
import { existsSync } from 'node:fs';

export type Place = Readonly<{ root: string; home: string; path: string }>;

/** execve(2): one argument may be no longer. */
const MAX_ARGUMENT_BYTES = 128 * 1024;
/** A code point is four bytes at most. */
const PART_CHARACTERS = 30_000;

/** The plain environment of every command (docs/guides/commands.md); what the workspace adds comes after it. */
export function environment(place: Place, added: Readonly<Record<string, string>>): Record<string, string> {
  return {
    LANG: 'C.UTF-8',
    CI: '1',
    TERM: 'dumb',
    ...added,
    PATH: added['PATH'] ?? place.path,
    HOME: place.home,
    PWD: place.root,
  };
}

/** Ours where the image has no bash; `sh` as the last resort, whose syntax is less. */
export function shell(): string | undefined {
  return ['/bin/bash', '/usr/bin/bash', '/usr/local/bin/bash', '/lathe/bin/bash', '/bin/sh'].find((path) =>
    existsSync(path),
  );
}

/** A command that is too long for one argument comes in several, and the shell joins them. */
export function shellArguments(command: string): readonly string[] {
  if (Buffer.byteLength(command) < MAX_ARGUMENT_BYTES) return ['-c', command];
  const characters = [...command];
  const parts: string[] = [];
  for (let at = 0; at < characters.length; at += PART_CHARACTERS)
    parts.push(characters.slice(at, at + PART_CHARACTERS).join(''));
  // With an empty IFS `$*` is the parts with nothing between them.
  return ['-c', 'IFS=; set -- "$*"; unset IFS; eval "shift; $1"', 'bash', ...parts];
}
