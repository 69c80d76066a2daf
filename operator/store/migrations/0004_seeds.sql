-- A seed may take minutes and several tries: what it does, or what it waits for, and when it is tried again.
ALTER TABLE workspace
  ADD COLUMN seed_message text,
  ADD COLUMN seed_attempts int NOT NULL DEFAULT 0,
  ADD COLUMN seed_retry_at timestamptz;
-- Looked for once a second by every replica.
CREATE INDEX workspace_seed ON workspace (seed_retry_at) WHERE seed_state = 'Ready';
