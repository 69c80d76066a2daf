/** Pieces that several kinds are made of. Every string, list and map has a bound: CEL's cost is counted from them. */
import { z } from 'zod';
import { DURATION_PATTERN, QUANTITY_PATTERN } from './quantity.ts';

export type Rule = Readonly<{ rule: string; message?: string; messageExpression?: string; fieldPath?: string }>;
/** CEL rules on the schema they are put at. */
export const rules = (...list: Rule[]) => ({ 'x-kubernetes-validations': list });
export const listMap = (...keys: string[]) => ({ 'x-kubernetes-list-type': 'map', 'x-kubernetes-list-map-keys': keys });
export const immutable = (what: string): Rule => ({
  rule: 'self == oldSelf',
  message: `${what} can't be changed; make a new object`,
});

export const quantity = (description: string) =>
  z.string().max(32).regex(new RegExp(QUANTITY_PATTERN)).meta({ description });
export const duration = (description: string) =>
  z.string().max(32).regex(new RegExp(DURATION_PATTERN)).meta({ description });
export const text = (description: string, max = 1_024) => z.string().max(max).meta({ description });
/** A name that Kubernetes would take for an object. */
export const objectName = (description: string) =>
  z
    .string()
    .min(1)
    .max(253)
    .regex(/^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/)
    .meta({ description });
export const globs = (description: string) =>
  z.array(z.string().min(1).max(512)).max(64).meta({ description, 'x-kubernetes-list-type': 'atomic' });

export const resources = (description: string) =>
  z
    .object({
      cpu: quantity('Cores; requests equal limits.').optional(),
      memory: quantity('Bytes; requests equal limits, /tmp counts into it.').optional(),
      disk: quantity('Bytes of ephemeral storage.').optional(),
    })
    .meta({ description });

export const volume = (description: string) =>
  z
    .object({
      mode: z
        .enum(['Persistent', 'Ephemeral'])
        .meta({
          description:
            'Persistent: one claim per workspace, made at the first command. Ephemeral: an emptyDir, filled from the store.',
        })
        .optional(),
      size: quantity('Size of the claim or of the emptyDir.').optional(),
      storageClassName: objectName("Of the claim; absent: the cluster's default.").optional(),
    })
    .meta({ description });

export const files = (description: string) =>
  z
    .object({
      writable: globs(
        'Paths that a command may change; absent: all. Anything else is refused with ScopeRefused and put back.',
      ).optional(),
      ignored: globs(
        'Paths that are never collected, versioned or deleted: dependency folders, caches. They live on the volume only.',
      ).optional(),
      maxFileSize: quantity('A larger file is refused with FileTooLarge.').optional(),
      maxTotalSize: quantity('A diff that makes the workspace larger is refused with WorkspaceFull.').optional(),
      maxFiles: z
        .int()
        .min(1)
        .max(1_000_000)
        .meta({ description: 'A diff that makes more files is refused with TooManyFiles.' })
        .optional(),
      deletions: z
        .object({
          ratio: z.int().min(1).max(100).meta({ description: 'Percent of all files.' }).optional(),
          atLeast: z.int().min(1).max(1_000_000).meta({ description: 'Number of files.' }).optional(),
        })
        .meta({
          description:
            'A diff that deletes more than this ratio and at least this many files is refused with DeletionsHeld and undone.',
        })
        .optional(),
    })
    .meta({ description });

export const sandbox = (description: string) =>
  z
    .object({
      idleTimeout: duration('The pod is deleted after this long without a command; files stay.').optional(),
      maxLifetime: duration('The pod is replaced after this long, between commands.').optional(),
    })
    .meta({ description });

export const condition = z.object({
  type: z.string().max(316),
  status: z.enum(['True', 'False', 'Unknown']),
  reason: z.string().max(1_024),
  message: z.string().max(32_768),
  lastTransitionTime: z.string().meta({ format: 'date-time' }),
  observedGeneration: z.int().optional(),
});
export const conditions = z
  .array(condition)
  .max(16)
  .meta({ description: 'What holds and what does not, each with its reason.', ...listMap('type') });
export type Condition = z.infer<typeof condition>;
export const time = (description: string) => z.string().meta({ description, format: 'date-time' });
export const observedGeneration = z
  .int()
  .meta({ description: 'The generation of spec that this status is about.' })
  .optional();
