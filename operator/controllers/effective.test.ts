import { expect, test } from 'vitest';
import type { ClassSpec, WorkspaceSpec } from '../../crds/types.ts';
import { effectiveOf, isProblem, resolveClass } from './effective.ts';
import type { WorkspaceClass } from './resources.ts';

const cls = (name: string, spec: ClassSpec = {}, isDefault = false): WorkspaceClass => ({
  metadata: {
    name,
    uid: name,
    resourceVersion: '1',
    annotations: isDefault ? { 'lathe.dev/is-default-class': 'true' } : {},
  },
  spec,
});

test.for<[situation: string, spec: WorkspaceSpec, classes: WorkspaceClass[], want: string]>([
  ['it names one', { class: 'b' }, [cls('a', {}, true), cls('b')], 'b'],
  ['it names none: the default', {}, [cls('a'), cls('b', {}, true)], 'b'],
  ['it names one that is not there', { class: 'c' }, [cls('a')], 'WorkspaceClass c is not there; there are: a'],
  ['no default', {}, [cls('a')], 'no WorkspaceClass is the default'],
  ['two defaults', {}, [cls('a', {}, true), cls('b', {}, true)], 'several WorkspaceClasses'],
  [
    'a namespace that is not allowed',
    { class: 'a' },
    [cls('a', { allowedNamespaces: ['x'] })],
    'is not for namespace team',
  ],
  ['a namespace that is allowed', { class: 'a' }, [cls('a', { allowedNamespaces: ['team'] })], 'a'],
])('the class of a workspace: %s', ([, spec, classes, want]) => {
  const found = resolveClass(spec, 'team', classes);
  expect(isProblem(found) ? found.message : found.metadata.name).toContain(want);
});

const effective = (spec: WorkspaceSpec, c: ClassSpec = {}) => {
  const value = effectiveOf(spec, 'c', c, 'our-image');
  if (isProblem(value)) throw new Error(value.message);
  return value;
};

test('nothing asked, nothing set: the defaults', () => {
  expect(effective({})).toMatchObject({
    image: 'our-image',
    resources: { cpu: '1', memory: '2Gi', disk: '10Gi' },
    volume: { mode: 'Persistent', size: '10Gi' },
    files: { maxFileSize: '64Mi', maxTotalSize: '1Gi', maxFiles: 100_000, deletions: { ratio: 50, atLeast: 20 } },
    sandbox: { idleTimeout: '5m', maxLifetime: '1h' },
  });
});

test('a ceiling of the class wins over a larger wish, a smaller wish wins over the ceiling', () => {
  const c: ClassSpec = { files: { maxFileSize: '1Mi', maxFiles: 10 }, sandbox: { idleTimeout: '2m' } };
  expect(effective({ files: { maxFileSize: '5Mi', maxFiles: 5 }, sandbox: { idleTimeout: '1h' } }, c)).toMatchObject({
    files: { maxFileSize: '1Mi', maxFiles: 5 },
    sandbox: { idleTimeout: '2m' },
  });
});

test.for<[situation: string, spec: WorkspaceSpec, c: ClassSpec, message: string]>([
  [
    'an image that is not allowed',
    { environment: { image: 'evil:1' } },
    { images: { allowed: ['good/*'] } },
    'image evil:1 is not allowed',
  ],
  [
    'more than the class allows',
    { environment: { resources: { memory: '4Gi' } } },
    { resources: { max: { memory: '2Gi' } } },
    'memory 4Gi is over',
  ],
  ['an absurd quantity', { environment: { resources: { memory: '900Ti' } } }, {}, "memory 900Ti can't be had"],
  ['next to nothing', { environment: { resources: { memory: '1' } } }, {}, "memory 1 can't be had"],
])('refused: %s', ([, spec, c, message]) => expect(() => effective(spec, c)).toThrow(message));

test('an image that the class allows by a glob', () => {
  expect(effective({ environment: { image: 'good/image:1' } }, { images: { allowed: ['good/*'] } }).image).toBe(
    'good/image:1',
  );
});
