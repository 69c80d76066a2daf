-- Exports and imports of whole workspaces (docs/reference/export.md).

-- An import gives turns and executions new ids, for the old ones may live on beside them; an export gives them back their
-- first ones, so that the same history is the same bytes wherever it went.
CREATE TABLE imported_id (
  workspace uuid NOT NULL REFERENCES workspace ON DELETE CASCADE,
  id uuid NOT NULL,
  origin uuid NOT NULL,
  PRIMARY KEY (workspace, id)
);
-- The log's large payloads in order of their hash.
CREATE INDEX event_payload_blob ON event (workspace, payload_sha256) WHERE payload_sha256 IS NOT NULL;

-- What an import has read so far. Unlogged: after a crash of the server nobody has a use for half of one, and the import
-- that finds its row gone says so. Nothing of it is seen before `import_finish`.
CREATE UNLOGGED TABLE import (
  workspace uuid PRIMARY KEY REFERENCES workspace ON DELETE CASCADE,
  id uuid NOT NULL,
  touched_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNLOGGED TABLE import_row (
  workspace uuid NOT NULL REFERENCES import ON DELETE CASCADE,
  kind text NOT NULL,
  n bigint GENERATED ALWAYS AS IDENTITY,
  line jsonb NOT NULL,
  PRIMARY KEY (workspace, kind, n)
);

CREATE FUNCTION exported_id(p_workspace uuid, p_id uuid) RETURNS uuid LANGUAGE sql STABLE AS $$
  SELECT COALESCE((SELECT i.origin FROM imported_id i WHERE i.workspace = p_workspace AND i.id = p_id), p_id);
$$;
-- Of the workspace and the old id, so that no list of them is kept while an import runs; a UUID of version 8 (RFC 9562).
CREATE FUNCTION new_imported_id(p_workspace uuid, p_origin text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
  SELECT encode(set_byte(set_byte(h, 6, (get_byte(h, 6) & 15) | 128), 8, (get_byte(h, 8) & 63) | 128), 'hex')::uuid
  FROM (SELECT substring(sha256(uuid_send(p_workspace) || uuid_send(p_origin::uuid)) FOR 16) AS h) x;
$$;
CREATE FUNCTION exported_time(p_at timestamptz) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
$$;
-- Whether a file of the tree at a version has this content.
CREATE FUNCTION in_tree(p_workspace uuid, p_version bigint, p_sha256 bytea) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (
    SELECT 1 FROM file_version f WHERE f.workspace = p_workspace AND f.sha256 = p_sha256 AND f.version <= p_version AND NOT EXISTS (
      SELECT 1 FROM file_version n WHERE n.workspace = p_workspace AND n.path = f.path AND n.version > f.version AND n.version <= p_version));
$$;

-- LT010: there is something in this workspace, an import makes it anew. The caller holds the row.
CREATE FUNCTION import_empty(p_workspace uuid) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  w workspace;
BEGIN
  SELECT * INTO w FROM workspace WHERE id = p_workspace FOR UPDATE;
  IF w.seed_state IN ('Pending', 'Ready') THEN RAISE EXCEPTION 'its seed is still to come' USING ERRCODE = 'LT010'; END IF;
  IF w.head > 0 THEN RAISE EXCEPTION 'it has files already (version %)', w.head USING ERRCODE = 'LT010'; END IF;
  IF w.last_seq > 0 THEN RAISE EXCEPTION 'it has a log already (% events)', w.last_seq USING ERRCODE = 'LT010'; END IF;
  IF EXISTS (SELECT 1 FROM turn WHERE workspace = p_workspace) THEN RAISE EXCEPTION 'it has turns already' USING ERRCODE = 'LT010'; END IF;
  IF EXISTS (SELECT 1 FROM kv WHERE workspace = p_workspace) THEN RAISE EXCEPTION 'it has values already' USING ERRCODE = 'LT010'; END IF;
END $$;

-- One import per workspace: the one before, whatever became of it, is swept away.
CREATE FUNCTION import_begin(p_workspace uuid, p_incarnation bigint, p_epoch bigint, p_token uuid, p_id uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM fence(p_workspace, p_incarnation, p_epoch, p_token);
  PERFORM import_empty(p_workspace);
  DELETE FROM import WHERE workspace = p_workspace;
  INSERT INTO import (workspace, id) VALUES (p_workspace, p_id);
END $$;

-- LT011: another import took this one's place, or the server crashed.
CREATE FUNCTION import_stage(
  p_workspace uuid, p_incarnation bigint, p_epoch bigint, p_token uuid, p_id uuid, p_kind text, p_lines jsonb
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM fence(p_workspace, p_incarnation, p_epoch, p_token);
  UPDATE import SET touched_at = now() WHERE workspace = p_workspace AND id = p_id;
  IF NOT FOUND THEN RAISE EXCEPTION 'what this import had read is gone' USING ERRCODE = 'LT011'; END IF;
  INSERT INTO import_row (workspace, kind, line) SELECT p_workspace, p_kind, line FROM jsonb_array_elements(p_lines) AS x (line);
END $$;

-- Checks what only the whole can tell (LT012 says what does not fit), then makes it the workspace's, all at once.
-- p: head, seq, headOnly, dryRun, rows {kind: count}, event {actor, payload}, idempotency {key, requestSha256}.
CREATE FUNCTION import_finish(
  p_workspace uuid, p_incarnation bigint, p_epoch bigint, p_token uuid, p_id uuid, p jsonb,
  OUT head bigint, OUT files bigint, OUT bytes bigint
) LANGUAGE plpgsql AS $$
DECLARE
  whole boolean := NOT (p->>'headOnly')::boolean;
  odd text;
  seq bigint;
  w_tenant uuid;
BEGIN
  PERFORM fence(p_workspace, p_incarnation, p_epoch, p_token);
  PERFORM import_empty(p_workspace);
  SELECT w.tenant INTO w_tenant FROM workspace w WHERE w.id = p_workspace;
  PERFORM 1 FROM import i WHERE i.workspace = p_workspace AND i.id = p_id FOR UPDATE;
  IF NOT FOUND THEN RAISE EXCEPTION 'what this import had read is gone' USING ERRCODE = 'LT011'; END IF;
  SELECT k INTO odd FROM jsonb_each_text(p->'rows') AS e (k, n)
    WHERE n::bigint <> (SELECT count(*) FROM import_row r WHERE r.workspace = p_workspace AND r.kind = k) LIMIT 1;
  IF FOUND THEN RAISE EXCEPTION 'what this import had read is gone' USING ERRCODE = 'LT011'; END IF;

  -- A hash proves nothing: only contents that came with this archive may be named, or it would read its neighbours' files.
  SELECT named.sha256 INTO odd FROM (
    SELECT line->>'sha256' AS sha256, line->>'size' AS size FROM import_row r WHERE r.workspace = p_workspace AND r.kind = 'history' AND line ? 'sha256'
    EXCEPT SELECT line->>'sha256', line->>'size' FROM import_row r WHERE r.workspace = p_workspace AND r.kind = 'content'
  ) named LIMIT 1;
  IF FOUND THEN RAISE EXCEPTION 'content % is named and not in it', odd USING ERRCODE = 'LT012'; END IF;
  SELECT named.sha256 INTO odd FROM (
    SELECT line->>'payloadSha256' AS sha256 FROM import_row r WHERE r.workspace = p_workspace AND r.kind = 'event' AND line ? 'payloadSha256'
    UNION SELECT line->>'outputSha256' FROM import_row r WHERE r.workspace = p_workspace AND r.kind = 'execution' AND line ? 'outputSha256'
    EXCEPT SELECT line->>'sha256' FROM import_row r WHERE r.workspace = p_workspace AND r.kind = 'content'
  ) named LIMIT 1;
  IF FOUND THEN RAISE EXCEPTION 'content % is named and not in it', odd USING ERRCODE = 'LT012'; END IF;
  IF whole THEN
    SELECT x.path INTO odd FROM (
      (SELECT f.* FROM import_tree(p_workspace) f EXCEPT SELECT h.* FROM import_head(p_workspace) h)
      UNION (SELECT h.* FROM import_head(p_workspace) h EXCEPT SELECT f.* FROM import_tree(p_workspace) f)
    ) x LIMIT 1;
    IF FOUND THEN RAISE EXCEPTION 'its history does not lead to %', quote_ident(odd) USING ERRCODE = 'LT012'; END IF;
  END IF;

  head := CASE WHEN whole THEN (p->>'head')::bigint ELSE 1 END;
  SELECT count(*), COALESCE(sum((line->>'size')::bigint), 0) INTO files, bytes
    FROM import_row r WHERE r.workspace = p_workspace AND r.kind = 'file';
  IF files = 0 AND NOT whole THEN head := 0; END IF;
  IF (p->>'dryRun')::boolean THEN
    DELETE FROM import WHERE workspace = p_workspace;
    RETURN;
  END IF;
  seq := CASE WHEN whole THEN (p->>'seq')::bigint ELSE 0 END;

  INSERT INTO imported_id (workspace, id, origin)
    SELECT p_workspace, new_imported_id(p_workspace, x.origin), x.origin::uuid FROM (
      SELECT line->>'id' AS origin FROM import_row r WHERE r.workspace = p_workspace AND r.kind IN ('turn', 'execution')
      UNION SELECT line->>'turn' FROM import_row r WHERE r.workspace = p_workspace AND r.kind IN ('execution', 'event', 'version')
      UNION SELECT line->>'execution' FROM import_row r WHERE r.workspace = p_workspace AND r.kind IN ('history', 'event', 'version')
    ) x WHERE x.origin IS NOT NULL;
  IF whole THEN
    INSERT INTO file_version (workspace, path, version, kind, executable, size, tenant, sha256, target, execution)
      SELECT p_workspace, l.path, l.version, l.kind, l.executable, l.size, w_tenant, decode(l.sha256, 'hex'), l.target,
             new_imported_id(p_workspace, l.execution)
      FROM import_row r CROSS JOIN LATERAL jsonb_to_record(r.line) AS l (
        path text, version bigint, kind text, executable boolean, size bigint, sha256 text, target text, execution text)
      WHERE r.workspace = p_workspace AND r.kind = 'history' ORDER BY r.n;
    INSERT INTO version_info (workspace, version, seq, at, origin, actor, turn, session, execution, created, changed, deleted)
      SELECT p_workspace, l.version, l.seq, l.at, l.origin, l.actor, new_imported_id(p_workspace, l.turn), l.session,
             new_imported_id(p_workspace, l.execution), l.created, l.changed, l.deleted
      FROM import_row r CROSS JOIN LATERAL jsonb_to_record(r.line) AS l (
        version bigint, seq bigint, at timestamptz, origin text, actor text, turn text, session text, execution text,
        created int, changed int, deleted int)
      WHERE r.workspace = p_workspace AND r.kind = 'version' ORDER BY r.n;
  ELSIF files > 0 THEN
    INSERT INTO file_version (workspace, path, version, kind, executable, size, tenant, sha256, target)
      SELECT p_workspace, l.path, 1, l.kind, l.executable, l.size, w_tenant, decode(l.sha256, 'hex'), l.target
      FROM import_row r CROSS JOIN LATERAL jsonb_to_record(r.line) AS l (
        path text, kind text, executable boolean, size bigint, sha256 text, target text)
      WHERE r.workspace = p_workspace AND r.kind = 'file' ORDER BY r.n;
    INSERT INTO version_info (workspace, version, seq, origin, actor, created, changed, deleted)
      SELECT p_workspace, 1, 1, 'import', p->'event'->>'actor', count(*) FILTER (WHERE line->>'kind' <> 'directory'), 0, 0
      FROM import_row r WHERE r.workspace = p_workspace AND r.kind = 'file';
  END IF;
  INSERT INTO file (workspace, path, version, kind, executable, size, sha256, target)
    SELECT DISTINCT ON (v.path) p_workspace, v.path, v.version, v.kind, v.executable, v.size, v.sha256, v.target
    FROM file_version v WHERE v.workspace = p_workspace ORDER BY v.path, v.version DESC;
  DELETE FROM file f WHERE f.workspace = p_workspace AND f.kind = 'deleted';
  SELECT COALESCE(sum(f.size), 0) INTO bytes FROM file f WHERE f.workspace = p_workspace;

  INSERT INTO session (workspace, name, created_at)
    SELECT p_workspace, line->>'name', (line->>'createdAt')::timestamptz
    FROM import_row r WHERE r.workspace = p_workspace AND r.kind = 'session' ORDER BY r.n;
  -- What had not ended is over: nothing that was paid runs again by itself. One that waits for a person goes on waiting,
  -- as nobody in particular: whom it acted for is not the archive's to say.
  INSERT INTO turn (id, workspace, name, uid, session, spec, spec_hash, phase, reason, message, answer, exit_code, output, steps, usage,
                    files, from_version, to_version, queued_at, started_at, finished_at)
    SELECT new_imported_id(p_workspace, l.id), p_workspace, l.name, 'imported-' || new_imported_id(p_workspace, l.id), l.session,
           CASE l.phase WHEN 'NeedsContinuation' THEN l.spec - 'actor' ELSE l.spec END, l."specHash",
           CASE WHEN open THEN 'Cancelled' ELSE l.phase END,
           CASE WHEN open THEN 'Imported' ELSE l.reason END,
           CASE WHEN open THEN 'it had not ended when the workspace was exported; to run it again, apply it under another name' ELSE l.message END,
           l.answer, l."exitCode", l.output, l.steps, l.usage, l.files, l."fromVersion", l."toVersion", l."queuedAt", l."startedAt",
           CASE WHEN open THEN now() ELSE l."finishedAt" END
    FROM import_row r CROSS JOIN LATERAL jsonb_to_record(r.line) AS l (
      id text, name text, session text, spec jsonb, "specHash" text, phase text, reason text, message text, answer text, "exitCode" int,
      output text, steps int, usage jsonb, files jsonb, "fromVersion" bigint, "toVersion" bigint, "queuedAt" timestamptz,
      "startedAt" timestamptz, "finishedAt" timestamptz)
    CROSS JOIN LATERAL (SELECT l.phase IN ('Queued', 'Running') AS open) o
    WHERE r.workspace = p_workspace AND r.kind = 'turn' ORDER BY r.n;
  -- Of one that was on its way nobody can know any more how it ended (CONTRACTS 4).
  INSERT INTO execution (id, workspace, turn, session, tool_use_id, actor, command, timeout_ms, state, base_version, version, result,
                         output_sha256, dispatched_at, done_at)
    SELECT new_imported_id(p_workspace, l.id), p_workspace, new_imported_id(p_workspace, l.turn), l.session, l."toolUseId", l.actor,
           l.command, l."timeoutMs", CASE l.state WHEN 'done' THEN 'done' ELSE 'unknown' END, l."baseVersion", l.version, l.result,
           decode(l."outputSha256", 'hex'), l."dispatchedAt", l."doneAt"
    FROM import_row r CROSS JOIN LATERAL jsonb_to_record(r.line) AS l (
      id text, turn text, session text, "toolUseId" text, actor text, command text, "timeoutMs" int, state text, "baseVersion" bigint,
      version bigint, result jsonb, "outputSha256" text, "dispatchedAt" timestamptz, "doneAt" timestamptz)
    WHERE r.workspace = p_workspace AND r.kind = 'execution' ORDER BY r.n;
  INSERT INTO event (workspace, seq, session, turn, execution, type, v, actor, at, epoch, payload, payload_sha256)
    SELECT p_workspace, l.seq, l.session, new_imported_id(p_workspace, l.turn), new_imported_id(p_workspace, l.execution), l.type, l.v,
           l.actor, l.at, p_epoch, l.payload, decode(l."payloadSha256", 'hex')
    FROM import_row r CROSS JOIN LATERAL jsonb_to_record(r.line) AS l (
      seq bigint, session text, turn text, execution text, type text, v int, actor text, at timestamptz, payload jsonb, "payloadSha256" text)
    WHERE r.workspace = p_workspace AND r.kind = 'event' ORDER BY r.n;
  INSERT INTO kv (workspace, key, value, sha256, updated_at)
    SELECT p_workspace, line->>'key', decode(line->>'value', 'base64'), decode(line->>'sha256', 'hex'), (line->>'updatedAt')::timestamptz
    FROM import_row r WHERE r.workspace = p_workspace AND r.kind = 'kv' ORDER BY r.n;

  seq := add_events(p_workspace, p_epoch, seq, jsonb_build_array(jsonb_set(p->'event', '{payload}',
    p->'event'->'payload' || jsonb_build_object('fromVersion', 0, 'toVersion', head))));
  UPDATE workspace w SET head = import_finish.head, last_seq = seq, files = import_finish.files, bytes = import_finish.bytes
    WHERE w.id = p_workspace;
  IF p ? 'idempotency' THEN
    INSERT INTO idempotency_key (tenant, key, request_sha256, response)
      VALUES (w_tenant, p_workspace || ' ' || (p->'idempotency'->>'key'), decode(p->'idempotency'->>'requestSha256', 'hex'),
              p->'idempotency'->'response' || jsonb_build_object('version', head, 'files', files, 'bytes', bytes))
      ON CONFLICT (tenant, key) DO UPDATE SET request_sha256 = excluded.request_sha256, response = excluded.response, created_at = now();
  END IF;
  DELETE FROM import WHERE workspace = p_workspace;
  PERFORM mark_dirty('workspace', p_workspace);
END $$;

CREATE TYPE import_entry AS (path text, kind text, executable boolean, size bigint, sha256 text, target text);
-- The tree as its files are.
CREATE FUNCTION import_tree(p_workspace uuid) RETURNS SETOF import_entry LANGUAGE sql STABLE AS $$
  SELECT l.path, l.kind, l.executable, CASE l.kind WHEN 'regular' THEN l.size ELSE 0 END, l.sha256, l.target
  FROM import_row r CROSS JOIN LATERAL jsonb_to_record(r.line) AS l (
    path text, kind text, executable boolean, size bigint, sha256 text, target text)
  WHERE r.workspace = p_workspace AND r.kind = 'file';
$$;
-- The tree as its history says that it is.
CREATE FUNCTION import_head(p_workspace uuid) RETURNS SETOF import_entry LANGUAGE sql STABLE AS $$
  SELECT h.path, h.kind, h.executable, CASE h.kind WHEN 'regular' THEN h.size ELSE 0 END, h.sha256, h.target FROM (
    SELECT DISTINCT ON (l.path) l.* FROM import_row r CROSS JOIN LATERAL jsonb_to_record(r.line) AS l (
      path text, version bigint, kind text, executable boolean, size bigint, sha256 text, target text)
    WHERE r.workspace = p_workspace AND r.kind = 'history' ORDER BY l.path, l.version DESC) h
  WHERE h.kind <> 'deleted';
$$;
