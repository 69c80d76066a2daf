/** Logs are records: a constant message, the rest in fields. No content, no credential. */
export type Level = 'debug' | 'info' | 'warn' | 'error';
/** The fields that logs have; one query follows a turn through three processes. */
export type Fields = Readonly<
  Partial<
    Record<
      | 'workspace'
      | 'turn'
      | 'execution'
      | 'sandbox'
      | 'namespace'
      | 'name'
      | 'kind'
      | 'reason'
      | 'replica'
      | 'ms'
      | 'count'
      | 'address'
      | 'version',
      string | number
    >
  > & { err?: unknown }
>;
export type Logger = Readonly<Record<Level, (message: string, fields?: Fields) => void>>;

const ORDER: readonly Level[] = ['debug', 'info', 'warn', 'error'];

/** Writes a JSON line to standard error for each record at or above `level`. */
export function createLogger(
  level: Level,
  bound: Readonly<Record<string, string>> = {},
  write = (line: string) => void process.stderr.write(line),
): Logger {
  const at =
    (of: Level) =>
    (message: string, fields: Fields = {}) => {
      if (ORDER.indexOf(of) < ORDER.indexOf(level)) return;
      const { err, ...rest } = fields;
      const error =
        err === undefined ? {} : { err: err instanceof Error ? `${err.name}: ${err.message}` : String(err) };
      write(`${JSON.stringify({ at: new Date().toISOString(), level: of, message, ...bound, ...rest, ...error })}\n`);
    };
  return { debug: at('debug'), info: at('info'), warn: at('warn'), error: at('error') };
}
