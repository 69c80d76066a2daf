/** The types of our resources, as their declarations give them. */
import type { z } from 'zod';
import type { sandboxSpec, sandboxStatus } from './sandbox.ts';
import type { turnSpec, turnStatus } from './turn.ts';
import type { workspaceClassSpec, workspaceClassStatus } from './workspace-class.ts';
import type { workspaceQuotaSpec, workspaceQuotaStatus } from './workspace-quota.ts';
import type { effectiveSpec, workspaceSpec, workspaceStatus } from './workspace.ts';

export type WorkspaceSpec = z.infer<typeof workspaceSpec>;
export type SeedSpec = NonNullable<WorkspaceSpec['seed']>;
export type WorkspaceStatus = z.infer<typeof workspaceStatus>;
export type EffectiveSpec = z.infer<typeof effectiveSpec>;
export type TurnSpec = z.infer<typeof turnSpec>;
export type TurnStatus = z.infer<typeof turnStatus>;
export type SandboxSpec = z.infer<typeof sandboxSpec>;
export type SandboxStatus = z.infer<typeof sandboxStatus>;
export type ClassSpec = z.infer<typeof workspaceClassSpec>;
export type ClassStatus = z.infer<typeof workspaceClassStatus>;
export type QuotaSpec = z.infer<typeof workspaceQuotaSpec>;
export type QuotaStatus = z.infer<typeof workspaceQuotaStatus>;
export type ModelEntry = NonNullable<ClassSpec['models']>[number];
