/** `Range: bytes=…` of one part (RFC 9110 section 14). What is not understood is passed over, as the RFC says. Pure. */
export function parseRange(
  header: string | undefined,
  size: number,
): Readonly<{ from: number; to: number }> | 'unsatisfiable' | undefined {
  const parts = /^bytes=(\d*)-(\d*)$/.exec(header?.trim() ?? '');
  if (parts === null) return undefined;
  const [, first = '', last = ''] = parts;
  if (first === '' && last === '') return undefined;
  if (first === '') {
    const from = Math.max(0, size - Number(last));
    return Number(last) === 0 || size === 0 ? 'unsatisfiable' : { from, to: size };
  }
  const from = Number(first);
  if (last !== '' && Number(last) < from) return undefined;
  if (from >= size) return 'unsatisfiable';
  return { from, to: last === '' ? size : Math.min(Number(last) + 1, size) };
}

/** Whether `If-None-Match` names this ETag, or any. Of a weak one the mark is passed over, as the RFC says (8.8.3.2). Pure. */
export function namesEtag(header: string | undefined, etag: string): boolean {
  const named = (header ?? '').split(',').map((one) => one.trim().replace(/^W\//, ''));
  return named.includes(etag) || named.includes('*');
}
