/** The meeting of each workspace that this replica has to do with. */
import { Meeting } from './meeting.ts';

/**
 * One per workspace, made at first use. It is the same one for as long as anybody holds it (a session, a command), and
 * gone after the last of them: a replica outlives any number of workspaces.
 */
export function createMeetings(): (workspace: string) => Meeting {
  const meetings = new Map<string, WeakRef<Meeting>>();
  const gone = new FinalizationRegistry<string>((workspace) => {
    if (meetings.get(workspace)?.deref() === undefined) meetings.delete(workspace);
  });
  return (workspace) => {
    const found = meetings.get(workspace)?.deref();
    if (found !== undefined) return found;
    const meeting = new Meeting();
    meetings.set(workspace, new WeakRef(meeting));
    gone.register(meeting, workspace);
    return meeting;
  };
}
