/** The one rule for keys of values beside the files. */
export const MAX_KEY_BYTES = 512;

export function isKey(key: string): boolean {
  return key !== '' && Buffer.byteLength(key) <= MAX_KEY_BYTES && !key.includes('\0') && key.isWellFormed();
}
