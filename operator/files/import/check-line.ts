/** What a line must be beside its shape: in order, within the export, whole in itself. Pure. */
import { canonicalPath, escapeName } from '../../../proto/paths.ts';
import { isKey, MAX_KEY_BYTES } from '../../../proto/live/keys.ts';
import { KV_BYTES, KV_LIMITS } from '../../../proto/live/types.ts';
import { PermanentError } from '../../errors.ts';
import { sha256Of, type ExportHeader, type LineKind, type LineOf } from '../export/format.ts';
import { broken } from './broken.ts';

/** The last line of each kind: what comes after it must be more. */
export type Progress = Readonly<{
  history?: Readonly<{ version: number; path: Buffer }>;
  last?: string;
  number?: number;
  /** Of the values: how many, and how large together. */
  values?: Readonly<{ count: number; bytes: number }>;
  kind?: LineKind;
}>;

/** @returns the progress after it. @throws PermanentError BadRequest, PathRefused */
export function checkLine(kind: LineKind, line: LineOf<LineKind>, header: ExportHeader, before: Progress): Progress {
  const last = before.kind === kind ? before : {};
  switch (kind) {
    case 'history':
      return checkHistory(line as LineOf<'history'>, header, last);
    case 'versions': {
      const { version, seq } = line as LineOf<'versions'>;
      if (version > header.version || seq > header.seq + 1 || version <= (last.number ?? 0))
        throw disorder(kind, version);
      return { kind, number: version };
    }
    case 'events': {
      const { seq, payload, payloadSha256 } = line as LineOf<'events'>;
      if (seq > header.seq || seq <= (last.number ?? 0)) throw disorder(kind, seq);
      if ((payload === undefined) === (payloadSha256 === undefined))
        throw broken(`event ${seq} has no payload, or two`);
      return { kind, number: seq };
    }
    case 'kv': {
      const { key, value, sha256 } = line as LineOf<'kv'>;
      if (last.last !== undefined && Buffer.compare(Buffer.from(key), Buffer.from(last.last)) <= 0)
        throw disorder(kind, key);
      const bytes = Buffer.from(value, 'base64');
      if (bytes.length > KV_BYTES)
        throw broken(`the value ${escapeName(key)} has ${bytes.length} bytes, at most ${KV_BYTES}`);
      if (!isKey(key))
        throw broken(`the key ${escapeName(key)} is not 1 to ${MAX_KEY_BYTES} bytes of UTF-8 without NUL`);
      if (sha256Of(bytes) !== sha256) throw broken(`the value ${escapeName(key)} does not have its hash`);
      const { count, bytes: held } = last.values ?? { count: 0, bytes: 0 };
      const values = { count: count + 1, bytes: held + bytes.length };
      if (values.count > KV_LIMITS.keys || values.bytes > KV_LIMITS.bytes)
        throw broken(`it has more than ${KV_LIMITS.keys} values or ${KV_LIMITS.bytes} bytes of them`);
      return { kind, last: key, values };
    }
    case 'sessions': {
      const { name } = line as LineOf<'sessions'>;
      if (last.last !== undefined && Buffer.compare(Buffer.from(name), Buffer.from(last.last)) <= 0)
        throw disorder(kind, name);
      return { kind, last: name };
    }
    // In the order in which they ran; that an id is there once, the store sees.
    case 'executions':
    case 'turns':
      return { kind };
  }
}

function checkHistory(line: LineOf<'history'>, header: ExportHeader, { history }: Progress): Progress {
  const { version, path, kind, sha256, target } = line;
  const result = canonicalPath(path);
  if ('refused' in result) throw new PermanentError('PathRefused', `the export can't be taken: ${result.refused}`);
  if (result.path !== path)
    throw new PermanentError(
      'PathRefused',
      `the export can't be taken: path ${escapeName(path)} is not in its one form`,
    );
  const bytes = Buffer.from(path);
  const isAfter =
    history === undefined ||
    version > history.version ||
    (version === history.version && bytes.compare(history.path) > 0);
  if (!isAfter || version > header.version) throw disorder('history', path);
  const isWhole =
    (kind === 'regular') === (sha256 !== undefined) &&
    (kind === 'symlink') === (target !== undefined) &&
    !(target?.includes('\0') ?? false);
  if (!isWhole) throw broken(`what version ${version} did to ${escapeName(path)} is not whole`);
  return { kind: 'history', history: { version, path: bytes } };
}

function disorder(kind: LineKind, what: number | string): PermanentError {
  return broken(
    `${typeof what === 'number' ? what : escapeName(what)} in ${kind} is not in its place, or is there twice`,
  );
}
