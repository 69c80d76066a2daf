/** What a kind is to Kubernetes beside its fields. */
import type { z } from 'zod';
import type { Rule } from './shapes.ts';

export type Column = Readonly<{
  name: string;
  type: 'string' | 'integer' | 'date';
  path: string;
  wide?: true;
  description?: string;
}>;
export type Kind = Readonly<{
  kind: string;
  plural: string;
  singular: string;
  shortNames: readonly string[];
  scope: 'Namespaced' | 'Cluster';
  description: string;
  /** Before anything else it says on the reference page. */
  example: string;
  spec: z.ZodObject;
  status: z.ZodObject;
  columns: readonly Column[];
  selectable?: readonly string[];
  /** On the whole object, so that they can see its name. */
  rules: readonly Rule[];
}>;

export const GROUP = 'lathe.dev';
export const VERSION = 'v1alpha1';
