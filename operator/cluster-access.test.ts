import { expect, test } from 'vitest';
import { readTenantSecretOf } from './cluster-access.ts';
import type { KubeClient } from './kube/client.ts';
import { KubeError } from './kube/errors.ts';

const reading = (get: () => Promise<unknown>) =>
  readTenantSecretOf({ get } as unknown as KubeClient, 'lathe-system:lathe-turns')('team-a', 'git-cred');

test("a tenant's Secret is read by name, with the hosts that it is for", async () => {
  const secret = {
    metadata: { annotations: { 'lathe.dev/hosts': 'git.example, github.com' } },
    data: { password: Buffer.from('pässword').toString('base64') },
  };
  const { data, hosts } = await reading(async () => secret);
  expect([data.get('password')?.toString(), hosts]).toEqual(['pässword', ['git.example', 'github.com']]);
  expect((await reading(async () => ({ metadata: {} }))).hosts).toBeUndefined();
});

test.for<[situation: string, status: number, reason: string, says: RegExp]>([
  ['that is not there: for later, and where to make it', 404, 'NotFound', /no Secret git-cred in namespace team-a/],
  [
    'that may not be read: for later, and the Role that allows it',
    403,
    'Forbidden',
    /create role lathe-secret-git-cred --verb=get --resource=secrets --resource-name=git-cred && .*--serviceaccount=lathe-system:lathe-turns$/,
  ],
  ['while the API server is away: for later', 503, 'ServiceUnavailable', /away/],
])('one %s', async ([, status, reason, says]) => {
  const error = reading(() => Promise.reject(new KubeError(status, reason, 'away')));
  await expect(error).rejects.toMatchObject({ name: 'TransientError', reason, message: expect.stringMatching(says) });
});
