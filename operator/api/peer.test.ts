import { X509Certificate } from 'node:crypto';
import { expect, test } from 'vitest';
import { issueLeaf, newAuthority } from '../controllers/certificate-authority.ts';
import { certificatesOf, leadsTo } from './peer.ts';

const now = new Date();
const [ours, other] = [await newAuthority(now), await newAuthority(now)];
const leaf = new X509Certificate(
  (await issueLeaf(ours, { commonName: 'front-proxy-client', names: ['c'] }, now)).certificate,
);
const [ourCa, otherCa] = [new X509Certificate(ours.certificate), new X509Certificate(other.certificate)];

test('two authorities of one name are told apart by what they signed', () => {
  expect(ourCa.subject).toBe(otherCa.subject);
  expect(leadsTo([leaf], [ourCa])).toBe(true);
  expect(leadsTo([leaf], [otherCa])).toBe(false);
  expect(leadsTo([leaf], [otherCa, ourCa])).toBe(true);
});

test('an authority that the client sends along is not believed for that', () => {
  expect(leadsTo([leaf, ourCa], [otherCa])).toBe(false);
  expect(leadsTo([leaf, otherCa], [otherCa])).toBe(false);
  expect(leadsTo([], [ourCa])).toBe(false);
});

test('a bundle has several authorities, and text between them', () => {
  const bundle = `# old\n${other.certificate}\n# new\n${ours.certificate}\n`;
  expect(certificatesOf(bundle).map((c) => c.fingerprint256)).toEqual([otherCa.fingerprint256, ourCa.fingerprint256]);
});
