/** The meeting of each workspace that this replica has to do with. */
import { Meeting } from './session.ts';

/** One per workspace, made at first use. They are small, and as many as workspaces were active here. */
export function createMeetings(): (workspace: string) => Meeting {
  const meetings = new Map<string, Meeting>();
  return (workspace) => {
    const found = meetings.get(workspace) ?? new Meeting();
    meetings.set(workspace, found);
    return found;
  };
}
