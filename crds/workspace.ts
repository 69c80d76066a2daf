/** Workspace: the files, and what may work on them. */
import { z } from 'zod';
import type { Kind } from './kind.ts';
import { DURATION_PATTERN } from './quantity.ts';
import {
  conditions,
  files,
  immutable,
  listMap,
  objectName,
  observedGeneration,
  resources,
  rules,
  sandbox,
  text,
  volume,
} from './shapes.ts';

/** Names in a command's environment that are ours; a value there would lie to the command or to us. */
export const RESERVED_ENV = ['HOME', 'PWD', 'SHLVL', 'TERM', 'CI'] as const;

const environment = z
  .object({
    image: text(
      'Image of the container that commands run in; any Linux image with a shell. Absent: the class decides.',
      512,
    )
      .min(1)
      .optional(),
    resources: resources('Absent parts are those of the class.').optional(),
    env: z
      .array(
        z
          .object({
            name: z
              .string()
              .min(1)
              .max(128)
              .regex(/^[A-Za-z_][A-Za-z0-9_]*$/),
            value: text('A plain value.', 4_096).optional(),
            valueFrom: z
              .object({})
              .meta({
                'x-kubernetes-preserve-unknown-fields': true,
                description: 'Refused: a sandbox holds no credentials.',
              })
              .optional(),
          })
          .meta(
            rules(
              {
                rule: '!has(self.valueFrom)',
                message: 'env takes plain values only: a sandbox holds no credentials; use a connector',
              },
              {
                rule: `!self.name.startsWith('LATHE_') && !(self.name in [${RESERVED_ENV.map((n) => `'${n}'`).join(', ')}])`,
                messageExpression: "'env ' + self.name + ' is reserved by Lathe; choose another name'",
                message: 'this name is reserved by Lathe; choose another name',
              },
            ),
          ),
      )
      .max(64)
      .meta({ description: 'Added to the environment of every command.', ...listMap('name') })
      .optional(),
  })
  .meta({ description: 'What commands run in.' });

/** One host, at most one port, no credentials; `git@host:path` is what people paste. */
const GIT_URL =
  '^(https?://[^/@\\s]+/\\S*|ssh://([A-Za-z0-9_][A-Za-z0-9._-]*@)?[^/@\\s-][^/@\\s]*/\\S+|[A-Za-z0-9_][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9.-]*:\\S+)$';
const ARCHIVE_URL = '^https?://[^/@\\s]+/\\S*$';

const git = z
  .object({
    url: text(
      'https://host/path, ssh://user@host/path or user@host:path. Without credentials: they belong into a Secret.',
      2_048,
    )
      .min(1)
      .meta(
        rules({
          rule: `self.matches(r'${GIT_URL}')`,
          message:
            'git.url must be https://host/path, ssh://user@host/path or user@host:path, without a password in it (secretName names a Secret)',
        }),
      ),
    ref: text("A branch, a tag or a whole commit hash. Absent: the repository's default branch.", 255)
      .min(1)
      .regex(/^[^-\s~^:?*[\\][^\s~^:?*[\\]*$/)
      .optional(),
    depth: z
      .int()
      .min(0)
      .max(1_000_000)
      .meta({ description: 'Commits of history: 1 (the default) is the newest alone, 0 is all of it.' })
      .optional(),
    secretName: objectName(
      'A Secret of the same namespace, of the type kubernetes.io/basic-auth (username, password) for https, or kubernetes.io/ssh-auth (ssh-privatekey, and known_hosts beside it) for ssh. The turn controller needs the right to get it; the condition says how.',
    ).optional(),
  })
  .meta({
    description:
      'A Git repository, cloned by the turn controller; .git is kept, submodules are not fetched, hooks are not run. No credential gets into the workspace.',
  });

const archive = z
  .object({
    url: text('https://host/path of a .tar.gz, .tar.zst or .zip.', 2_048)
      .min(1)
      .meta(
        rules({
          rule: `self.matches(r'${ARCHIVE_URL}')`,
          message: 'archive.url must be https://host/path, without a password in it',
        }),
      ),
    sha256: z
      .string()
      .regex(/^[0-9a-f]{64}$/)
      .meta({ description: 'Of the archive, in hexadecimal. Nothing of it is used before it was compared.' }),
    format: z
      .enum(['tar.gz', 'tar.zst', 'zip'])
      .meta({ description: "Absent: by the URL's ending (.tgz is tar.gz)." })
      .optional(),
    stripComponents: z
      .int()
      .min(0)
      .max(64)
      .meta({ description: 'Leading folders that are taken off each path; what has no more than these is left out.' })
      .optional(),
  })
  .meta({ description: 'An archive of the web, fetched and unpacked by the turn controller.' });

const seed = z
  .object({
    git: git.optional(),
    archive: archive.optional(),
    workspace: z
      .object({
        name: objectName('A Workspace of the same namespace.').max(50),
        version: z
          .int()
          .min(1)
          .meta({ description: 'Version of its files. Absent: its head when this seed is made.' })
          .optional(),
      })
      .meta({ description: 'The files of another Workspace, as they are at a version. Nothing is copied but rows.' })
      .optional(),
    configMap: z
      .object({
        name: objectName('A ConfigMap of the same namespace.'),
        items: z
          .array(
            z.object({
              key: text('Key of the ConfigMap (data or binaryData).', 253).min(1),
              path: text('Where it goes, within the workspace.', 4_096).min(1),
              executable: z.boolean().meta({ description: 'Whether it gets the executable bit.' }).optional(),
            }),
          )
          .min(1)
          .max(512)
          .meta({ description: 'Absent: every key becomes a file of that name.', ...listMap('key') })
          .optional(),
      })
      .meta({ description: 'Files from a ConfigMap.' })
      .optional(),
  })
  .meta({
    description:
      'What the workspace holds at first, committed as version 1 before the first turn; turns stay Queued until then. Exactly one source.',
    ...rules(
      {
        rule: '[has(self.git), has(self.archive), has(self.workspace), has(self.configMap)].filter(is, is).size() == 1',
        message: 'seed needs one source, and only one: git, archive, workspace or configMap',
      },
      immutable('seed'),
    ),
  });

export const workspaceSpec = z.object({
  class: objectName('Name of a WorkspaceClass. Absent: the default class.').optional(),
  displayName: text('For people.', 256).optional(),
  seed: seed.optional(),
  environment: environment.optional(),
  volume: volume("Where the working copy lives. mode and storageClassName can't be changed.")
    .meta(
      rules(
        {
          rule: 'has(self.mode) == has(oldSelf.mode) && (!has(self.mode) || self.mode == oldSelf.mode)',
          message: "volume.mode can't be changed; make a new Workspace",
        },
        {
          rule: 'has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)',
          message: "volume.storageClassName can't be changed; make a new Workspace",
        },
      ),
    )
    .optional(),
  files: files("Limits of what commands may change. The class's ceilings win.").optional(),
  sandbox: sandbox("How long its pod lives. The class's ceilings win.").optional(),
  retention: z
    .string()
    .max(32)
    .regex(new RegExp(DURATION_PATTERN))
    .meta({
      description:
        'How long its record (files, history, log) is kept after the Workspace was deleted; adoptFrom brings it back until then. 168h by default.',
    })
    .optional(),
  adoptFrom: z
    .string()
    .max(36)
    .regex(/^(None|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$/)
    .meta({
      description:
        'status.id of a deleted Workspace of this namespace, whose record this one goes on with; None: whatever there was, it starts empty.',
      ...rules(immutable('adoptFrom')),
    })
    .optional(),
  deletionPolicy: z
    .enum(['Delete', 'Retain'])
    .meta({ description: 'Whether the volume goes with the Workspace (Delete, the default) or stays.' })
    .optional(),
});

export const effectiveSpec = z
  .object({
    class: z.string(),
    image: z.string(),
    resources: z.object({ cpu: z.string(), memory: z.string(), disk: z.string() }),
    volume: z.object({
      mode: z.enum(['Persistent', 'Ephemeral']),
      size: z.string(),
      storageClassName: z.string().optional(),
    }),
    files: z.object({
      writable: z.array(z.string()).optional(),
      ignored: z.array(z.string()),
      maxFileSize: z.string(),
      maxTotalSize: z.string(),
      maxFiles: z.int(),
      deletions: z.object({ ratio: z.int(), atLeast: z.int() }),
    }),
    sandbox: z.object({ idleTimeout: z.string(), maxLifetime: z.string() }),
  })
  .meta({ description: 'What holds, after class and defaults.' });

export const workspaceStatus = z.object({
  observedGeneration,
  conditions: conditions.optional(),
  id: z.string().meta({ description: 'Of its record; outlives this object.' }).optional(),
  head: z.int().meta({ description: 'Version of the files.' }).optional(),
  files: z.int().optional(),
  bytes: z.int().optional(),
  activeTurn: z.string().optional(),
  sandbox: z.string().meta({ description: 'Name of its Sandbox, once there was one.' }).optional(),
  volume: z.object({ claimName: z.string().optional(), mode: z.string().optional() }).optional(),
  effective: effectiveSpec.optional(),
});

export const WORKSPACE: Kind = {
  kind: 'Workspace',
  plural: 'workspaces',
  singular: 'workspace',
  shortNames: ['ws'],
  scope: 'Namespaced',
  description: 'The files of one piece of work, and what may work on them. It costs a row until its first command.',
  example:
    'apiVersion: lathe.dev/v1alpha1\nkind: Workspace\nmetadata: { name: billing, namespace: team-a }\nspec: {}\n',
  spec: workspaceSpec,
  status: workspaceStatus,
  columns: [
    { name: 'Ready', type: 'string', path: '.status.conditions[?(@.type=="Ready")].status' },
    { name: 'Head', type: 'integer', path: '.status.head' },
    { name: 'Files', type: 'integer', path: '.status.files' },
    { name: 'Turn', type: 'string', path: '.status.activeTurn' },
    { name: 'Age', type: 'date', path: '.metadata.creationTimestamp' },
    { name: 'Class', type: 'string', path: '.status.effective.class', wide: true },
    { name: 'Message', type: 'string', path: '.status.conditions[?(@.type=="Ready")].message', wide: true },
  ],
  rules: [
    {
      rule: "self.metadata.name.size() <= 50 && !self.metadata.name.contains('.')",
      message: 'the name of a Workspace has at most 50 characters and no dots',
    },
  ],
};
