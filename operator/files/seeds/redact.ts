/** What a tool said, fit to be shown: without the credentials it was given and without control characters. Pure. */
const MAX_CHARACTERS = 1_500;
/** Shorter values would take words out of every sentence. */
const MIN_SECRET = 4;

export function redact(text: string, secrets: readonly string[]): string {
  let shown = text;
  for (const form of forms(secrets)) shown = shown.replaceAll(form, '[redacted]');
  const lines = shown
    .replaceAll(/\p{Cc}\[[0-9;]*[A-Za-z]/gu, '')
    .split(/[\r\n]+/)
    .map((line) => line.replaceAll(/[\p{Cc}\p{Cf}\uFFFD]/gu, '').trim())
    .filter((line) => line !== '');
  const joined = lines.join('; ');
  return joined.length > MAX_CHARACTERS ? `…${joined.slice(-MAX_CHARACTERS)}` : joined;
}

/** As it is, as in a URL, as in a header; longest first. A key of several lines: each line. */
function forms(secrets: readonly string[]): readonly string[] {
  const all = secrets.flatMap((secret) => [secret, ...secret.split('\n').map((line) => line.trim())]);
  return [...new Set(all.flatMap((s) => [s, encodeURIComponent(s), Buffer.from(s).toString('base64'), base64Url(s)]))]
    .filter((s) => s.length >= MIN_SECRET)
    .toSorted((a, b) => b.length - a.length);
}

function base64Url(text: string): string {
  return Buffer.from(text).toString('base64url');
}
