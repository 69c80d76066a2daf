import { expect, test } from 'vitest';
import { dockerCommand } from './in-docker.ts';

test('the container reads the repository, writes the cache, sees both where they are outside, and is gone afterwards', () => {
  const command = dockerCommand('/src/lathe', '/home/ada/.cache/lathe', ['server', 'runtime']);
  expect(command.slice(0, 3)).toEqual(['docker', 'run', '--rm']);
  expect(command).toContain('--mount=type=bind,src=/src/lathe,dst=/src/lathe,readonly');
  expect(command).toContain('--mount=type=bind,src=/home/ada/.cache/lathe,dst=/home/ada/.cache/lathe');
  expect(command).toContain('--env=LATHE_CACHE=/home/ada/.cache/lathe');
  expect(command.slice(-4)).toEqual(['images/main.ts', 'server', 'runtime', '--json']);
});
