-- Files by the live API: what each version was, values beside the files, uploads in parts, contents that arrive in a stream.
CREATE TABLE version_info (
  workspace uuid NOT NULL REFERENCES workspace ON DELETE CASCADE,
  version bigint NOT NULL,
  -- Of the first event that tells of it.
  seq bigint NOT NULL,
  at timestamptz NOT NULL DEFAULT now(),
  origin text NOT NULL CHECK (origin IN ('execution', 'outside', 'api', 'seed', 'import', 'restore')),
  actor text,
  turn uuid,
  session text,
  execution uuid,
  created int NOT NULL,
  changed int NOT NULL,
  deleted int NOT NULL,
  PRIMARY KEY (workspace, version)
);
CREATE INDEX file_version_by_version ON file_version (workspace, version, path);

CREATE TABLE kv (
  workspace uuid NOT NULL REFERENCES workspace ON DELETE CASCADE,
  key text COLLATE "C" NOT NULL,
  value bytea NOT NULL,
  sha256 bytea NOT NULL,
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (workspace, key)
);

-- Not finished, so worth nothing: gone 24 hours after its last part.
CREATE TABLE upload (
  id uuid PRIMARY KEY,
  workspace uuid NOT NULL REFERENCES workspace ON DELETE CASCADE,
  path text COLLATE "C" NOT NULL,
  actor text NOT NULL,
  bytes bigint NOT NULL DEFAULT 0,
  parts int NOT NULL DEFAULT 0,
  touched_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX upload_touched ON upload (touched_at);
CREATE TABLE upload_chunk (
  upload uuid NOT NULL REFERENCES upload ON DELETE CASCADE,
  ordinal int NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (upload, ordinal)
);
ALTER TABLE upload_chunk ALTER COLUMN data SET STORAGE EXTERNAL;

-- A content whose hash is known only at its end. Unlogged: after a crash nobody has a use for half of one.
CREATE UNLOGGED TABLE blob_staging (
  id uuid NOT NULL,
  ordinal int NOT NULL,
  data bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (id, ordinal)
);
ALTER TABLE blob_staging ALTER COLUMN data SET STORAGE EXTERNAL;

-- A change beside what the head has at its path.
CREATE TYPE commit_entry AS (
  path text, op text, kind text, executable boolean, size bigint, sha256 bytea, target text,
  old_version bigint, old_size bigint, old_kind text, stale boolean
);
DROP FUNCTION commit_changes(uuid, bigint, bigint, uuid, jsonb, jsonb, jsonb, jsonb, jsonb);

-- THE commit (CONTRACTS 2): everything that a diff changes, or nothing. LT002: the execution is not this sandbox's to finish.
-- p_options: origin, actor, turn, session for `version_info`; atomic: a conflict undoes all (LT004); idempotency {key,
-- requestSha256, response}: the answer is kept with what it answers for, version added (LT005: the key was used meanwhile).
CREATE FUNCTION commit_changes(
  p_workspace uuid, p_incarnation bigint, p_epoch bigint, p_token uuid,
  p_execution jsonb, p_changes jsonb, p_events jsonb, p_turn jsonb, p_usage jsonb, p_options jsonb,
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
  -- No temporary table: emptying one costs more than a small commit.
  entries commit_entry[];
BEGIN
  PERFORM fence(p_workspace, p_incarnation, p_epoch, p_token);
  SELECT w.head, w.last_seq, w.tenant INTO base, seq, w_tenant FROM workspace w WHERE w.id = p_workspace FOR UPDATE;
  head := base;
  conflicts := '{}';
  IF jsonb_array_length(p_changes) > 0 THEN
    SELECT array_agg(ROW(x.*)::commit_entry) INTO entries FROM (
      SELECT c.path, c.op, c.kind, COALESCE(c.executable, false), COALESCE(c.size, 0), decode(c.sha256, 'hex'), c.target,
             f.version, f.size, f.kind, COALESCE(f.version, 0) <> c.base::bigint
      FROM jsonb_to_recordset(p_changes) AS c (path text, op text, kind text, executable boolean, size bigint, sha256 text, target text, base text)
      -- One look-up per change, however large the workspace is.
      LEFT JOIN LATERAL (SELECT * FROM file f WHERE f.workspace = p_workspace AND f.path = c.path COLLATE "C" LIMIT 1) f ON true
    ) x;
    SELECT COALESCE(array_agg(c.path ORDER BY c.path COLLATE "C"), '{}') INTO conflicts FROM unnest(entries) c WHERE c.stale;
    IF cardinality(conflicts) > 0 AND (p_options->>'atomic')::boolean THEN
      RAISE EXCEPTION '% changed meanwhile', conflicts[1] USING ERRCODE = 'LT004';
    END IF;
    SELECT count(*),
           COALESCE(sum(CASE WHEN c.op = 'put' AND c.old_version IS NULL THEN 1 WHEN c.op = 'delete' AND c.old_version IS NOT NULL THEN -1 ELSE 0 END), 0),
           COALESCE(sum(CASE WHEN c.op = 'put' THEN c.size ELSE 0 END - COALESCE(c.old_size, 0)), 0)
      INTO applied, d_files, d_bytes FROM unnest(entries) c WHERE NOT c.stale;
    IF applied > 0 THEN
      head := base + 1;
      INSERT INTO file_version (workspace, path, version, kind, executable, size, tenant, sha256, target, execution)
        SELECT p_workspace, c.path, head, CASE c.op WHEN 'delete' THEN 'deleted' ELSE c.kind END, c.executable, c.size, w_tenant,
               CASE WHEN c.op = 'put' AND c.kind = 'regular' THEN c.sha256 END, c.target, (p_execution->>'id')::uuid
        FROM unnest(entries) c WHERE NOT c.stale;
      DELETE FROM file f USING unnest(entries) c WHERE f.workspace = p_workspace AND f.path = c.path COLLATE "C" AND c.op = 'delete' AND NOT c.stale;
      INSERT INTO file (workspace, path, version, kind, executable, size, sha256, target)
        SELECT p_workspace, c.path, head, c.kind, c.executable, c.size, CASE WHEN c.kind = 'regular' THEN c.sha256 END, c.target
        FROM unnest(entries) c WHERE c.op = 'put' AND NOT c.stale
        ON CONFLICT (workspace, path) DO UPDATE SET version = excluded.version, kind = excluded.kind, executable = excluded.executable,
          size = excluded.size, sha256 = excluded.sha256, target = excluded.target;
      -- Folders come and go with what is in them: they are not counted.
      INSERT INTO version_info (workspace, version, seq, origin, actor, turn, session, execution, created, changed, deleted)
        SELECT p_workspace, head, seq + 1, COALESCE(p_options->>'origin', 'execution'), p_options->>'actor', (p_options->>'turn')::uuid,
               p_options->>'session', (p_execution->>'id')::uuid,
               count(*) FILTER (WHERE c.op = 'put' AND c.old_version IS NULL), count(*) FILTER (WHERE c.op = 'put' AND c.old_version IS NOT NULL),
               count(*) FILTER (WHERE c.op = 'delete')
        FROM unnest(entries) c WHERE NOT c.stale AND COALESCE(c.kind, c.old_kind) <> 'directory';
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
  IF p_options ? 'idempotency' THEN
    INSERT INTO idempotency_key AS k (tenant, key, request_sha256, response)
      VALUES (w_tenant, p_workspace || ' ' || (p_options->'idempotency'->>'key'), decode(p_options->'idempotency'->>'requestSha256', 'hex'),
              p_options->'idempotency'->'response' || jsonb_build_object('version', head, 'committed', applied > 0))
      ON CONFLICT (tenant, key) DO UPDATE SET request_sha256 = excluded.request_sha256, response = excluded.response, created_at = now()
        WHERE k.created_at < now() - interval '24 hours';
    IF NOT FOUND THEN RAISE EXCEPTION 'this Idempotency-Key was used meanwhile' USING ERRCODE = 'LT005'; END IF;
  END IF;
  IF applied > 0 THEN PERFORM mark_dirty('workspace', p_workspace); END IF;
END $$;
