/** The one table of defaults: the code reads it, the reference pages print it (RESOURCES "Defaults"). */
export const DEFAULTS = {
  retention: '168h',
  resources: { cpu: '1', memory: '2Gi', disk: '10Gi' },
  volume: { mode: 'Persistent', size: '10Gi' },
  files: {
    maxFileSize: '64Mi',
    maxTotalSize: '1Gi',
    maxFiles: 100_000,
    deletions: { ratio: 50, atLeast: 20 },
    ignored: ['**/node_modules/**', '**/.venv/**', '**/target/**', '**/__pycache__/**'],
  },
  /** What the model may ask for is the class's ceiling, else `commandTimeoutMax`. */
  limits: { steps: 100, commandTimeout: '120s', commandTimeoutMax: '30m' },
  sandbox: { idleTimeout: '5m', maxLifetime: '1h' },
  session: 'main',
  /** Bytes: what the model sees of an output, and what is stored of it. */
  output: { modelBytes: 32 * 1024, storedBytes: 16 * 1024 * 1024 },
} as const;
