import { ExecutionPhase, type ExecutionState } from '../../proto/gen/lathe/sandbox/v1/sandbox.ts';
import type { Entry } from './journal.ts';

/** One execution as the owner is told of it at attach. */
export function inventoryOf(entry: Entry): ExecutionState {
  const { dispatch, output, finished, lost } = entry;
  const phase =
    lost !== undefined
      ? ExecutionPhase.EXECUTION_PHASE_LOST
      : finished === undefined
        ? ExecutionPhase.EXECUTION_PHASE_RUNNING
        : ExecutionPhase.EXECUTION_PHASE_FINISHED;
  return { execution: dispatch.execution, phase, outputBytes: BigInt(output.bytes) };
}
