/** What holds for a Workspace, after its class and the defaults; or why it can't work. Pure. */
import { DEFAULTS } from '../../crds/defaults.ts';
import { parseDuration, parseQuantity } from '../../crds/quantity.ts';
import type { ClassSpec, EffectiveSpec, WorkspaceSpec } from '../../crds/types.ts';
import { DEFAULT_CLASS_ANNOTATION } from '../../crds/workspace-class.ts';
import { compileGlobs } from '../../proto/globs.ts';
import type { WorkspaceClass } from './resources.ts';

export type Problem = Readonly<{ reason: string; message: string }>;

export function isDefault(c: WorkspaceClass): boolean {
  return c.metadata.annotations?.[DEFAULT_CLASS_ANNOTATION] === 'true';
}

/** The class that it names, or the default one. */
export function resolveClass(
  spec: WorkspaceSpec,
  namespace: string,
  classes: readonly WorkspaceClass[],
): WorkspaceClass | Problem {
  const defaults = classes.filter(isDefault);
  if (spec.class === undefined && defaults.length > 1) {
    return {
      reason: 'SeveralDefaults',
      message: `several WorkspaceClasses say they are the default (${defaults.map((c) => c.metadata.name).join(', ')}); name one in spec.class, or take the annotation from all but one`,
    };
  }
  const found = spec.class === undefined ? defaults[0] : classes.find((c) => c.metadata.name === spec.class);
  if (found === undefined) {
    const message =
      spec.class === undefined
        ? 'no WorkspaceClass is the default; name one in spec.class'
        : `WorkspaceClass ${spec.class} is not there; there are: ${classes.map((c) => c.metadata.name).join(', ') || 'none'}`;
    return { reason: 'NotFound', message };
  }
  const allowed = found.spec.allowedNamespaces;
  if (allowed !== undefined && !allowed.includes('*') && !allowed.includes(namespace)) {
    return {
      reason: 'Forbidden',
      message: `WorkspaceClass ${found.metadata.name} is not for namespace ${namespace}; its allowedNamespaces are: ${allowed.join(', ')}`,
    };
  }
  return found;
}

/** @param image the installation's own, where the class names none */
export function effectiveOf(
  spec: WorkspaceSpec,
  className: string,
  c: ClassSpec,
  image: string,
): EffectiveSpec | Problem {
  const asked = spec.environment?.image;
  const fallback = c.images?.default ?? image;
  if (
    asked !== undefined &&
    asked !== fallback &&
    !compileGlobs((c.images?.allowed ?? []).map((g) => `/${g}`))(`/${asked}`)
  ) {
    return {
      reason: 'ImageNotAllowed',
      message: `image ${asked} is not allowed by WorkspaceClass ${className}; allowed are: ${[fallback, ...(c.images?.allowed ?? [])].join(', ')}`,
    };
  }
  const resources = { ...DEFAULTS.resources, ...c.resources?.default, ...spec.environment?.resources };
  for (const [name, value] of Object.entries(resources)) {
    const max = c.resources?.max?.[name as keyof typeof resources];
    if (max !== undefined && (parseQuantity(value) ?? 0) > (parseQuantity(max) ?? 0)) {
      return {
        reason: 'QuotaExceeded',
        message: `environment.resources.${name} ${value} is over what WorkspaceClass ${className} allows (${max})`,
      };
    }
    const [least, most] = SANE[name as keyof typeof SANE];
    const parsed = parseQuantity(value) ?? 0;
    if (parsed < least || parsed > most) {
      return {
        reason: 'QuotaExceeded',
        message: `environment.resources.${name} ${value} can't be had on any machine; give something between ${least} and ${most} (bytes or cores)`,
      };
    }
  }
  const files = { ...DEFAULTS.files, ...c.files };
  const wish = spec.files;
  return {
    class: className,
    image: asked ?? fallback,
    resources,
    volume: {
      mode: spec.volume?.mode ?? c.volume?.mode ?? DEFAULTS.volume.mode,
      size: spec.volume?.size ?? c.volume?.size ?? DEFAULTS.volume.size,
      ...((spec.volume?.storageClassName ?? c.volume?.storageClassName) === undefined
        ? {}
        : { storageClassName: spec.volume?.storageClassName ?? c.volume?.storageClassName }),
    },
    files: {
      ...(wish?.writable === undefined && files.writable === undefined
        ? {}
        : { writable: [...(wish?.writable ?? files.writable ?? [])] }),
      ignored: [...new Set([...(c.files?.ignored ?? DEFAULTS.files.ignored), ...(wish?.ignored ?? [])])],
      maxFileSize: least(wish?.maxFileSize, files.maxFileSize, parseQuantity),
      maxTotalSize: least(wish?.maxTotalSize, files.maxTotalSize, parseQuantity),
      maxFiles: Math.min(wish?.maxFiles ?? files.maxFiles, files.maxFiles),
      deletions: {
        ratio: Math.min(
          wish?.deletions?.ratio ?? 100,
          c.files?.deletions?.ratio ?? (wish?.deletions?.ratio === undefined ? DEFAULTS.files.deletions.ratio : 100),
        ),
        atLeast: Math.min(
          wish?.deletions?.atLeast ?? Number.MAX_SAFE_INTEGER,
          c.files?.deletions?.atLeast ??
            (wish?.deletions?.atLeast === undefined ? DEFAULTS.files.deletions.atLeast : Number.MAX_SAFE_INTEGER),
        ),
      },
    },
    sandbox: {
      idleTimeout: least(
        spec.sandbox?.idleTimeout,
        c.sandbox?.idleTimeout ?? spec.sandbox?.idleTimeout ?? DEFAULTS.sandbox.idleTimeout,
        parseDuration,
      ),
      maxLifetime: least(
        spec.sandbox?.maxLifetime,
        c.sandbox?.maxLifetime ?? spec.sandbox?.maxLifetime ?? DEFAULTS.sandbox.maxLifetime,
        parseDuration,
      ),
    },
  };
}

const Mi = 2 ** 20;
const Ti = 2 ** 40;
/** Below: nothing starts. Above: no machine has it, and Kubernetes would wait for ever. */
const SANE = { cpu: [0.01, 1_024], memory: [32 * Mi, 24 * Ti], disk: [Mi, 512 * Ti] } as const;

function least(wish: string | undefined, ceiling: string, parse: (text: string) => number | undefined): string {
  if (wish === undefined) return ceiling;
  return (parse(wish) ?? Number.POSITIVE_INFINITY) < (parse(ceiling) ?? 0) ? wish : ceiling;
}

export function isProblem(value: object): value is Problem {
  return 'reason' in value && 'message' in value;
}
