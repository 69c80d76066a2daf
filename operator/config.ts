/** What our processes read from their environment, parsed once. The chart writes these; `docs/guides` lists them. */
import { z } from 'zod';
import { QUANTITY_PATTERN } from '../crds/quantity.ts';
import { PermanentError } from './errors.ts';

const logLevel = z.enum(['debug', 'info', 'warn', 'error']).default('info');
const port = (fallback: number) => z.coerce.number().int().min(0).max(65_535).default(fallback);

const migrateSchema = z.object({
  LATHE_DATABASE_URL: z.string().min(1),
  LATHE_LOG_LEVEL: logLevel,
});

const operatorSchema = migrateSchema.extend({
  /** The install namespace: Leases, Secrets and Scripted models' ConfigMaps are there. */
  LATHE_NAMESPACE: z.string().min(1),
  /** Who we are in the Lease: the pod's name. */
  POD_NAME: z.string().min(1),
  LATHE_TURNS_SERVICE: z.string().min(1).default('lathe-turns'),
  LATHE_SANDBOX_PORT: port(8443),
  LATHE_RUNTIME_IMAGE: z.string().min(1),
  LATHE_SANDBOX_IMAGE: z.string().min(1),
  /** Whether the live API is offered through the cluster's API server too. */
  LATHE_API_AGGREGATED: z.enum(['true', 'false']).default('false'),
  LATHE_HEALTH_PORT: port(8080),
});

const turnsSchema = migrateSchema.extend({
  LATHE_NAMESPACE: z.string().min(1),
  /** Other replicas and brokers reach this one here. */
  POD_IP: z.string().min(1),
  LATHE_TURNS_SERVICE: z.string().min(1).default('lathe-turns'),
  LATHE_SANDBOX_PORT: port(8443),
  LATHE_PROGRAMS_PORT: port(8444),
  LATHE_HEALTH_PORT: port(8080),
  /** Where seeds are fetched to; emptied at the start. */
  LATHE_SCRATCH: z.string().min(1).default('/tmp'),
  /** Its size; all seeds at once stay within it. */
  LATHE_SCRATCH_SIZE: z.string().regex(new RegExp(QUANTITY_PATTERN)).default('4Gi'),
  /** Hosts, addresses and networks that seeds may come from although they are not public. */
  LATHE_SEED_ALLOWED_HOSTS: z
    .string()
    .default('')
    .transform((list) => list.split(/[\s,]+/).filter((entry) => entry !== '')),
  LATHE_SEED_CONCURRENCY: z.coerce.number().int().min(1).max(100).default(2),
  LATHE_TURN_CONCURRENCY: z.coerce.number().int().min(1).max(10_000).default(200),
});

const apiSchema = migrateSchema.extend({
  LATHE_NAMESPACE: z.string().min(1),
  LATHE_TURNS_SERVICE: z.string().min(1).default('lathe-turns'),
  /** host:port of the turn controller's API for programs. */
  LATHE_TURNS_ADDRESS: z.string().min(1),
  LATHE_AGGREGATED_PORT: port(8443),
  LATHE_DIRECT_PORT: port(9443),
  LATHE_HEALTH_PORT: port(8080),
});

export type MigrateConfig = z.infer<typeof migrateSchema>;
export type OperatorConfig = z.infer<typeof operatorSchema>;
export type TurnsConfig = z.infer<typeof turnsSchema>;
export type ApiConfig = z.infer<typeof apiSchema>;
type Environment = Readonly<Record<string, string | undefined>>;

export const readMigrateConfig = (env: Environment): MigrateConfig => read(migrateSchema, env);
export const readOperatorConfig = (env: Environment): OperatorConfig => read(operatorSchema, env);
export const readTurnsConfig = (env: Environment): TurnsConfig => read(turnsSchema, env);

export const readApiConfig = (env: Environment): ApiConfig => read(apiSchema, env);

/** @throws PermanentError naming every variable that is missing or wrong, never a value (some are secrets) */
function read<T extends z.ZodType>(schema: T, env: Environment): z.infer<T> {
  const parsed = schema.safeParse(env);
  if (parsed.success) return parsed.data;
  const faults = parsed.error.issues.map((issue) => `${issue.path.join('.')}: ${issue.message}`);
  throw new PermanentError(
    'InvalidConfiguration',
    `the environment of this process is not usable (${faults.join('; ')}); set these variables in the chart's values`,
  );
}
