/** What a model is given. Pure. */
import { createHash } from 'node:crypto';
import type { ModelRequest } from '../models/model.ts';
import type { State } from './fold.ts';
import { BASH } from './tools.ts';

const INSTRUCTIONS = `You work in a sandbox, on the files in /workspace, through one tool: Bash. Every command starts in /workspace with a fresh shell. There is no network unless something was opened for you, and no credential. What your commands change is checked and kept; a result tells you what was refused. Look before you change, run the tests after. When the work is done, say briefly what you did, without a further call.`;

export function contextOf(state: State, maxOutputTokens: number | undefined): ModelRequest {
  return {
    system: INSTRUCTIONS,
    messages: state.messages,
    tools: [BASH],
    maxOutputTokens: maxOutputTokens ?? 8_192,
    reply: state.steps,
  };
}

/** Names a request in the log without its content. */
export function hashOf(request: ModelRequest): string {
  return createHash('sha256').update(JSON.stringify(request)).digest('hex');
}
