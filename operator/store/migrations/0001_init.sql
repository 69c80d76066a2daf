-- Identity (CONTRACTS 1): our own ids, bound to the uids of Kubernetes objects.
CREATE TABLE installation (
  id int PRIMARY KEY DEFAULT 1 CHECK (id = 1),
  system_id text NOT NULL,
  timeline bigint NOT NULL,
  incarnation bigint NOT NULL
);
INSERT INTO installation (system_id, timeline, incarnation)
  SELECT s.system_identifier::text, c.timeline_id, 1 FROM pg_control_system() s, pg_control_checkpoint() c;

CREATE TABLE tenant (
  id uuid PRIMARY KEY,
  namespace text NOT NULL,
  namespace_uid text NOT NULL UNIQUE,
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE class (
  name text PRIMARY KEY,
  uid text NOT NULL,
  generation bigint NOT NULL,
  spec jsonb NOT NULL
);

CREATE TABLE workspace (
  id uuid PRIMARY KEY,
  tenant uuid NOT NULL REFERENCES tenant,
  namespace text NOT NULL,
  name text NOT NULL,
  uid text NOT NULL UNIQUE,
  generation bigint NOT NULL,
  class text NOT NULL,
  spec jsonb NOT NULL,
  effective jsonb NOT NULL,
  head bigint NOT NULL DEFAULT 0,
  last_seq bigint NOT NULL DEFAULT 0,
  files bigint NOT NULL DEFAULT 0,
  bytes bigint NOT NULL DEFAULT 0,
  seed_state text NOT NULL CHECK (seed_state IN ('None', 'Pending', 'Ready', 'Done', 'Failed')),
  seed_error text,
  created_at timestamptz NOT NULL DEFAULT now(),
  deleted_at timestamptz
);
CREATE UNIQUE INDEX workspace_live ON workspace (namespace, name) WHERE deleted_at IS NULL;

CREATE TABLE seed (
  workspace uuid NOT NULL REFERENCES workspace ON DELETE CASCADE,
  path text COLLATE "C" NOT NULL,
  executable boolean NOT NULL,
  content bytea NOT NULL,
  PRIMARY KEY (workspace, path)
);

-- Ownership (CONTRACTS 3): one heartbeat per replica; an owner is ordered by (incarnation, epoch), a token separates equals.
CREATE TABLE replica (
  id uuid PRIMARY KEY,
  incarnation bigint NOT NULL,
  address text NOT NULL,
  heartbeat_at timestamptz NOT NULL
);

CREATE TABLE lease (
  workspace uuid PRIMARY KEY REFERENCES workspace ON DELETE CASCADE,
  incarnation bigint NOT NULL,
  epoch bigint NOT NULL,
  token uuid NOT NULL,
  replica uuid NOT NULL,
  released boolean NOT NULL DEFAULT false
);

CREATE TABLE session (
  workspace uuid NOT NULL REFERENCES workspace ON DELETE CASCADE,
  name text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (workspace, name)
);

CREATE TABLE turn (
  id uuid PRIMARY KEY,
  workspace uuid NOT NULL REFERENCES workspace ON DELETE CASCADE,
  -- The order in which turns of a workspace run.
  ordinal bigint GENERATED ALWAYS AS IDENTITY,
  name text NOT NULL,
  uid text NOT NULL UNIQUE,
  session text NOT NULL,
  spec jsonb NOT NULL,
  spec_hash text NOT NULL,
  phase text NOT NULL CHECK (phase IN ('Queued', 'Running', 'NeedsContinuation', 'Completed', 'Blocked', 'Cancelled', 'Failed')),
  reason text,
  message text,
  answer text,
  exit_code int,
  output text,
  steps int NOT NULL DEFAULT 0,
  usage jsonb,
  files jsonb,
  from_version bigint,
  to_version bigint,
  cancel_requested boolean NOT NULL DEFAULT false,
  queued_at timestamptz NOT NULL DEFAULT now(),
  started_at timestamptz,
  finished_at timestamptz
);
CREATE INDEX turn_unfinished ON turn (workspace, ordinal) WHERE phase IN ('Queued', 'Running');

-- Sandboxes. A replica asks for one here; the operator makes the pod; the row revokes a pod's token.
CREATE TABLE sandbox (
  id uuid PRIMARY KEY,
  workspace uuid NOT NULL UNIQUE REFERENCES workspace ON DELETE CASCADE,
  uid text UNIQUE,
  name text,
  operating_mode text NOT NULL DEFAULT 'Running',
  demanded boolean NOT NULL DEFAULT false,
  closed boolean NOT NULL DEFAULT false,
  activity bigint NOT NULL DEFAULT 0,
  last_activity_at timestamptz NOT NULL DEFAULT now(),
  pod_seq int NOT NULL DEFAULT 0,
  pod_name text,
  pod_uid text,
  pod_created_at timestamptz,
  boot text,
  attached_replica uuid,
  attached_at timestamptz,
  facts jsonb,
  synced_version bigint,
  report jsonb
);
CREATE TABLE sandbox_termination (
  sandbox uuid NOT NULL REFERENCES sandbox ON DELETE CASCADE,
  pod_uid text NOT NULL,
  container text NOT NULL,
  restart_count int NOT NULL,
  reason text NOT NULL,
  exit_code int,
  message text,
  at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (sandbox, pod_uid, container, restart_count)
);

-- Executions (CONTRACTS 4).
CREATE TABLE execution (
  id uuid PRIMARY KEY,
  workspace uuid NOT NULL REFERENCES workspace ON DELETE CASCADE,
  turn uuid,
  session text,
  tool_use_id text,
  actor text,
  command text NOT NULL,
  timeout_ms int NOT NULL,
  state text NOT NULL CHECK (state IN ('planned', 'dispatched', 'done', 'unknown')),
  sandbox uuid,
  boot text,
  base_version bigint NOT NULL,
  version bigint,
  result jsonb,
  output_sha256 bytea,
  idempotency_key text,
  dispatched_at timestamptz NOT NULL DEFAULT now(),
  done_at timestamptz
);
CREATE UNIQUE INDEX execution_idempotency ON execution (workspace, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX execution_open ON execution (workspace) WHERE state = 'dispatched';

-- Contents (CONTRACTS 5): once per tenant, in chunks that are read in binary.
CREATE TABLE blob (
  tenant uuid NOT NULL REFERENCES tenant,
  sha256 bytea NOT NULL CHECK (length(sha256) = 32),
  size bigint NOT NULL,
  location text NOT NULL DEFAULT 'postgres',
  codec text NOT NULL DEFAULT 'identity',
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant, sha256)
);
CREATE TABLE blob_chunk (
  tenant uuid NOT NULL,
  sha256 bytea NOT NULL,
  ordinal int NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (tenant, sha256, ordinal),
  FOREIGN KEY (tenant, sha256) REFERENCES blob ON DELETE CASCADE
);
ALTER TABLE blob_chunk ALTER COLUMN data SET STORAGE EXTERNAL;

-- Files: versions are only added; `file` is the tree at the head. The foreign key keeps a blob that a version names.
CREATE TABLE file_version (
  workspace uuid NOT NULL REFERENCES workspace ON DELETE CASCADE,
  path text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  kind text NOT NULL CHECK (kind IN ('regular', 'symlink', 'directory', 'deleted')),
  executable boolean NOT NULL DEFAULT false,
  size bigint NOT NULL DEFAULT 0,
  tenant uuid NOT NULL,
  sha256 bytea,
  target text,
  execution uuid,
  PRIMARY KEY (workspace, path, version),
  FOREIGN KEY (tenant, sha256) REFERENCES blob
);
CREATE INDEX file_version_hash ON file_version (workspace, sha256);
CREATE INDEX file_version_blob ON file_version (tenant, sha256);
CREATE TABLE file (
  workspace uuid NOT NULL REFERENCES workspace ON DELETE CASCADE,
  path text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  kind text NOT NULL,
  executable boolean NOT NULL,
  size bigint NOT NULL,
  sha256 bytea,
  target text,
  PRIMARY KEY (workspace, path)
);

-- The log: one sequence per workspace, only ever added to.
CREATE TABLE event (
  workspace uuid NOT NULL REFERENCES workspace ON DELETE CASCADE,
  seq bigint NOT NULL,
  session text,
  turn uuid,
  execution uuid,
  type text NOT NULL,
  v int NOT NULL,
  actor text,
  at timestamptz NOT NULL DEFAULT now(),
  epoch bigint NOT NULL,
  payload jsonb,
  payload_sha256 bytea,
  PRIMARY KEY (workspace, seq)
);
CREATE INDEX event_session ON event (workspace, session, seq);
CREATE INDEX event_turn ON event (turn, seq) WHERE turn IS NOT NULL;
CREATE FUNCTION event_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- A purge sets this for its own transaction; nothing else does.
  IF current_setting('lathe.purge', true) = 'on' THEN RETURN OLD; END IF;
  RAISE EXCEPTION 'events are only added' USING ERRCODE = 'LT003';
END $$;
CREATE TRIGGER event_immutable BEFORE UPDATE OR DELETE ON event FOR EACH ROW EXECUTE FUNCTION event_is_immutable();
CREATE TRIGGER event_untruncatable BEFORE TRUNCATE ON event EXECUTE FUNCTION event_is_immutable();

CREATE TABLE usage (
  workspace uuid NOT NULL REFERENCES workspace ON DELETE CASCADE,
  seq bigint NOT NULL,
  turn uuid,
  input_tokens bigint NOT NULL DEFAULT 0,
  output_tokens bigint NOT NULL DEFAULT 0,
  cache_read_tokens bigint NOT NULL DEFAULT 0,
  cache_creation_tokens bigint NOT NULL DEFAULT 0,
  at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (workspace, seq)
);

CREATE TABLE projection_dirty (
  kind text NOT NULL,
  id uuid NOT NULL,
  generation bigint NOT NULL DEFAULT 1,
  PRIMARY KEY (kind, id)
);

CREATE TABLE idempotency_key (
  tenant uuid NOT NULL,
  key text NOT NULL,
  request_sha256 bytea NOT NULL,
  response jsonb,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant, key)
);

CREATE FUNCTION mark_dirty(p_kind text, p_id uuid) RETURNS void LANGUAGE sql AS $$
  INSERT INTO projection_dirty (kind, id) VALUES (p_kind, p_id)
    ON CONFLICT (kind, id) DO UPDATE SET generation = projection_dirty.generation + 1;
$$;

-- Raises LT001 unless the caller owns the workspace. FOR SHARE: a takeover must wait for this transaction, or win first.
CREATE FUNCTION fence(p_workspace uuid, p_incarnation bigint, p_epoch bigint, p_token uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM lease l, installation i
    WHERE l.workspace = p_workspace AND l.incarnation = p_incarnation AND l.epoch = p_epoch AND l.token = p_token
      AND NOT l.released AND i.incarnation = p_incarnation
    FOR SHARE OF l;
  IF NOT FOUND THEN RAISE EXCEPTION 'the lease of workspace % is not held by this owner', p_workspace USING ERRCODE = 'LT001'; END IF;
END $$;

-- Adds events from p_seq + 1 on; returns the last sequence number. The caller holds the workspace row.
CREATE FUNCTION add_events(p_workspace uuid, p_epoch bigint, p_seq bigint, p_events jsonb) RETURNS bigint LANGUAGE sql AS $$
  WITH added AS (
    INSERT INTO event (workspace, seq, session, turn, execution, type, v, actor, epoch, payload, payload_sha256)
    SELECT p_workspace, p_seq + n, e->>'session', (e->>'turn')::uuid, (e->>'execution')::uuid, e->>'type', (e->>'v')::int,
           e->>'actor', p_epoch, e->'payload', decode(e->>'payloadSha256', 'hex')
    FROM jsonb_array_elements(p_events) WITH ORDINALITY AS x (e, n)
    RETURNING 1
  )
  SELECT p_seq + count(*) FROM added;
$$;

CREATE FUNCTION update_turn(p_workspace uuid, p_turn jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_turn IS NULL THEN RETURN; END IF;
  UPDATE turn SET
    phase = COALESCE(p_turn->>'phase', phase),
    reason = CASE WHEN p_turn ? 'reason' THEN p_turn->>'reason' ELSE reason END,
    message = CASE WHEN p_turn ? 'message' THEN p_turn->>'message' ELSE message END,
    answer = COALESCE(p_turn->>'answer', answer),
    exit_code = COALESCE((p_turn->>'exitCode')::int, exit_code),
    output = COALESCE(p_turn->>'output', output),
    steps = COALESCE((p_turn->>'steps')::int, steps),
    usage = COALESCE(p_turn->'usage', usage),
    files = COALESCE(p_turn->'files', files),
    from_version = COALESCE(from_version, (p_turn->>'fromVersion')::bigint),
    to_version = COALESCE((p_turn->>'toVersion')::bigint, to_version),
    started_at = CASE WHEN p_turn ? 'started' THEN COALESCE(started_at, now()) ELSE started_at END,
    finished_at = CASE WHEN p_turn ? 'finished' THEN COALESCE(finished_at, now()) ELSE finished_at END
    WHERE id = (p_turn->>'id')::uuid AND workspace = p_workspace;
  PERFORM mark_dirty('turn', (p_turn->>'id')::uuid);
END $$;

-- `dispatched` is committed before anything is sent. An id or idempotency key that is known already returns its row's id.
CREATE FUNCTION dispatch_execution(
  p_workspace uuid, p_incarnation bigint, p_epoch bigint, p_token uuid, p_x jsonb, p_events jsonb,
  OUT head bigint, OUT last_seq bigint, OUT existing uuid
) LANGUAGE plpgsql AS $$
DECLARE
  seq bigint;
BEGIN
  PERFORM fence(p_workspace, p_incarnation, p_epoch, p_token);
  SELECT w.head, w.last_seq INTO head, seq FROM workspace w WHERE w.id = p_workspace FOR UPDATE;
  SELECT e.id INTO existing FROM execution e
    WHERE e.workspace = p_workspace AND (e.id = (p_x->>'id')::uuid OR e.idempotency_key = p_x->>'idempotencyKey');
  IF FOUND THEN last_seq := seq; RETURN; END IF;
  INSERT INTO execution (id, workspace, turn, session, tool_use_id, actor, command, timeout_ms, state, sandbox, boot, base_version, idempotency_key)
    VALUES ((p_x->>'id')::uuid, p_workspace, (p_x->>'turn')::uuid, p_x->>'session', p_x->>'toolUseId', p_x->>'actor', p_x->>'command',
            (p_x->>'timeoutMs')::int, 'dispatched', (p_x->>'sandbox')::uuid, p_x->>'boot', head, p_x->>'idempotencyKey');
  last_seq := add_events(p_workspace, p_epoch, seq, p_events);
  UPDATE workspace w SET last_seq = dispatch_execution.last_seq WHERE w.id = p_workspace;
  UPDATE sandbox SET activity = activity + 1, last_activity_at = now() WHERE id = (p_x->>'sandbox')::uuid;
END $$;

-- THE commit (CONTRACTS 2): everything that a diff changes, or nothing. LT002: the execution is not this sandbox's to finish.
CREATE FUNCTION commit_changes(
  p_workspace uuid, p_incarnation bigint, p_epoch bigint, p_token uuid,
  p_execution jsonb, p_changes jsonb, p_events jsonb, p_turn jsonb, p_usage jsonb,
  OUT head bigint, OUT first_seq bigint, OUT last_seq bigint, OUT conflicts text[]
) LANGUAGE plpgsql AS $$
DECLARE
  seq bigint;
  base bigint;
  applied bigint := 0;
  d_files bigint := 0;
  d_bytes bigint := 0;
  w_tenant uuid;
  events jsonb := p_events;
BEGIN
  PERFORM fence(p_workspace, p_incarnation, p_epoch, p_token);
  SELECT w.head, w.last_seq, w.tenant INTO base, seq, w_tenant FROM workspace w WHERE w.id = p_workspace FOR UPDATE;
  head := base;
  conflicts := '{}';
  IF jsonb_array_length(p_changes) > 0 THEN
    CREATE TEMPORARY TABLE IF NOT EXISTS commit_change (
      path text COLLATE "C" PRIMARY KEY, op text, kind text, executable boolean, size bigint, sha256 bytea, target text,
      old_version bigint, old_size bigint, stale boolean
    ) ON COMMIT DELETE ROWS;
    DELETE FROM commit_change;
    INSERT INTO commit_change
      SELECT c.path, c.op, c.kind, COALESCE(c.executable, false), COALESCE(c.size, 0), decode(c.sha256, 'hex'), c.target,
             f.version, f.size, COALESCE(f.version, 0) <> c.base::bigint
      FROM jsonb_to_recordset(p_changes) AS c (path text, op text, kind text, executable boolean, size bigint, sha256 text, target text, base text)
      LEFT JOIN file f ON f.workspace = p_workspace AND f.path = c.path COLLATE "C";
    SELECT COALESCE(array_agg(c.path ORDER BY c.path), '{}') INTO conflicts FROM commit_change c WHERE c.stale;
    SELECT count(*),
           COALESCE(sum(CASE WHEN c.op = 'put' AND c.old_version IS NULL THEN 1 WHEN c.op = 'delete' AND c.old_version IS NOT NULL THEN -1 ELSE 0 END), 0),
           COALESCE(sum(CASE WHEN c.op = 'put' THEN c.size ELSE 0 END - COALESCE(c.old_size, 0)), 0)
      INTO applied, d_files, d_bytes FROM commit_change c WHERE NOT c.stale;
    IF applied > 0 THEN
      head := base + 1;
      INSERT INTO file_version (workspace, path, version, kind, executable, size, tenant, sha256, target, execution)
        SELECT p_workspace, c.path, head, CASE c.op WHEN 'delete' THEN 'deleted' ELSE c.kind END, c.executable, c.size, w_tenant,
               CASE WHEN c.op = 'put' AND c.kind = 'regular' THEN c.sha256 END, c.target, (p_execution->>'id')::uuid
        FROM commit_change c WHERE NOT c.stale;
      DELETE FROM file f USING commit_change c WHERE f.workspace = p_workspace AND f.path = c.path AND c.op = 'delete' AND NOT c.stale;
      INSERT INTO file (workspace, path, version, kind, executable, size, sha256, target)
        SELECT p_workspace, c.path, head, c.kind, c.executable, c.size, CASE WHEN c.kind = 'regular' THEN c.sha256 END, c.target
        FROM commit_change c WHERE c.op = 'put' AND NOT c.stale
        ON CONFLICT (workspace, path) DO UPDATE SET version = excluded.version, kind = excluded.kind, executable = excluded.executable,
          size = excluded.size, sha256 = excluded.sha256, target = excluded.target;
    END IF;
  END IF;
  IF p_execution IS NOT NULL THEN
    UPDATE execution SET state = p_execution->>'state', result = p_execution->'result', version = commit_changes.head,
        output_sha256 = decode(p_execution->>'outputSha256', 'hex'), done_at = now()
      WHERE id = (p_execution->>'id')::uuid AND workspace = p_workspace AND state = 'dispatched'
        AND sandbox = (p_execution->>'sandbox')::uuid AND boot = p_execution->>'boot';
    IF NOT FOUND THEN RAISE EXCEPTION 'execution % is not dispatched to this sandbox and boot', p_execution->>'id' USING ERRCODE = 'LT002'; END IF;
  END IF;
  -- What only this transaction knows goes into the events that tell of it.
  SELECT jsonb_agg(CASE WHEN e->>'type' IN ('execution.done', 'files.committed') AND e->'payload' IS NOT NULL
      THEN jsonb_set(e, '{payload}', (e->'payload') || jsonb_build_object('fromVersion', base, 'toVersion', head)
        || CASE WHEN cardinality(conflicts) > 0 THEN jsonb_build_object('conflicts', to_jsonb(conflicts)) ELSE '{}'::jsonb END)
      ELSE e END ORDER BY n) INTO events FROM jsonb_array_elements(p_events) WITH ORDINALITY AS x (e, n);
  first_seq := seq + 1;
  last_seq := CASE WHEN events IS NULL THEN seq ELSE add_events(p_workspace, p_epoch, seq, events) END;
  UPDATE workspace w SET head = commit_changes.head, last_seq = commit_changes.last_seq, files = w.files + d_files, bytes = w.bytes + d_bytes
    WHERE w.id = p_workspace;
  IF p_usage IS NOT NULL THEN
    INSERT INTO usage (workspace, seq, turn, input_tokens, output_tokens, cache_read_tokens, cache_creation_tokens)
      VALUES (p_workspace, last_seq, (p_usage->>'turn')::uuid, (p_usage->>'inputTokens')::bigint, (p_usage->>'outputTokens')::bigint,
              (p_usage->>'cacheReadTokens')::bigint, (p_usage->>'cacheCreationTokens')::bigint);
  END IF;
  PERFORM update_turn(p_workspace, p_turn);
  IF applied > 0 THEN PERFORM mark_dirty('workspace', p_workspace); END IF;
END $$;

-- The lease of a workspace for a replica, or nothing while another live replica has it. Waits for a commit that is under way.
CREATE FUNCTION acquire_lease(
  p_workspace uuid, p_replica uuid, p_ttl interval,
  OUT incarnation bigint, OUT epoch bigint, OUT token uuid, OUT owner uuid, OUT address text
) LANGUAGE plpgsql AS $$
DECLARE
  held lease;
  alive boolean;
  now_incarnation bigint;
BEGIN
  SELECT i.incarnation INTO now_incarnation FROM installation i;
  PERFORM 1 FROM replica r WHERE r.id = p_replica AND r.incarnation = now_incarnation AND r.heartbeat_at > now() - p_ttl;
  IF NOT FOUND THEN RAISE EXCEPTION 'replica % has no live heartbeat', p_replica USING ERRCODE = 'LT001'; END IF;
  INSERT INTO lease (workspace, incarnation, epoch, token, replica, released)
    VALUES (p_workspace, now_incarnation, 0, gen_random_uuid(), p_replica, true) ON CONFLICT DO NOTHING;
  SELECT * INTO held FROM lease l WHERE l.workspace = p_workspace FOR UPDATE;
  SELECT r.heartbeat_at > now() - p_ttl AND r.incarnation = now_incarnation, r.address INTO alive, address FROM replica r WHERE r.id = held.replica;
  owner := held.replica;
  IF NOT held.released AND COALESCE(alive, false) AND held.incarnation = now_incarnation THEN
    IF held.replica = p_replica THEN
      incarnation := held.incarnation; epoch := held.epoch; token := held.token;
    END IF;
    RETURN;
  END IF;
  UPDATE lease l SET incarnation = now_incarnation, epoch = l.epoch + 1, token = gen_random_uuid(), replica = p_replica, released = false
    WHERE l.workspace = p_workspace RETURNING l.incarnation, l.epoch, l.token INTO incarnation, epoch, token;
  owner := p_replica;
END $$;
