/** From whatever a person calls a workspace to a name that Kubernetes takes. */
import { createHash } from 'node:crypto';

/** RESOURCES: names of Workspaces have at most 50 characters and no dots. */
const MAX = 50;

/** The same name each time. One that is a name already stays; of any other the hash tells alike ones apart. */
export function workspaceName(displayName: string): string {
  if (/^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/.test(displayName) && displayName.length <= MAX) return displayName;
  const plain = displayName
    .normalize('NFKD')
    .toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, '-')
    .slice(0, MAX - 9)
    .replaceAll(/^-+|-+$/g, '');
  const hash = createHash('sha256').update(displayName).digest('hex').slice(0, 8);
  return plain === '' ? `w-${hash}` : `${plain}-${hash}`;
}
