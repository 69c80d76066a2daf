-- Records that nobody has any more: which they are, and how they go.
CREATE INDEX workspace_deleted ON workspace (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX event_payload ON event (payload_sha256) WHERE payload_sha256 IS NOT NULL;
CREATE INDEX execution_output ON execution (output_sha256) WHERE output_sha256 IS NOT NULL;
CREATE INDEX blob_created ON blob (created_at);

-- The one way that events are deleted. At most p_limit rows of the log at a time; true: the record is gone. Raises LT006 for
-- a workspace that is not deleted. Whoever owned it is fenced off first (CONTRACTS 2).
CREATE FUNCTION purge_workspace(p_workspace uuid, p_limit int) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  gone bigint;
BEGIN
  UPDATE lease SET epoch = epoch + 1, token = gen_random_uuid(), released = true WHERE workspace = p_workspace;
  PERFORM 1 FROM workspace WHERE id = p_workspace AND deleted_at IS NOT NULL FOR UPDATE;
  IF NOT FOUND THEN
    IF EXISTS (SELECT 1 FROM workspace WHERE id = p_workspace) THEN
      RAISE EXCEPTION 'workspace % is not deleted', p_workspace USING ERRCODE = 'LT006';
    END IF;
    RETURN true;
  END IF;
  PERFORM set_config('lathe.purge', 'on', true);
  DELETE FROM event WHERE workspace = p_workspace AND seq IN (SELECT seq FROM event WHERE workspace = p_workspace ORDER BY seq LIMIT p_limit);
  GET DIAGNOSTICS gone = ROW_COUNT;
  IF gone = p_limit THEN
    PERFORM set_config('lathe.purge', 'off', true);
    RETURN false;
  END IF;
  DELETE FROM workspace WHERE id = p_workspace;
  PERFORM set_config('lathe.purge', 'off', true);
  RETURN true;
END $$;

-- Contents that nothing names and that nobody put for a day, at most p_limit of them. Who puts one again makes it young; a commit
-- that names one after it was looked for is told by the foreign key, and that one stays.
CREATE FUNCTION collect_blobs(p_limit int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  old record;
  gone int := 0;
BEGIN
  FOR old IN
    SELECT o.tenant, o.sha256 FROM blob o
    WHERE o.created_at < now() - interval '24 hours'
      AND NOT EXISTS (SELECT 1 FROM file_version v WHERE v.tenant = o.tenant AND v.sha256 = o.sha256)
      AND NOT EXISTS (SELECT 1 FROM event e JOIN workspace w ON w.id = e.workspace WHERE w.tenant = o.tenant AND e.payload_sha256 = o.sha256)
      AND NOT EXISTS (SELECT 1 FROM execution x JOIN workspace w ON w.id = x.workspace WHERE w.tenant = o.tenant AND x.output_sha256 = o.sha256)
    ORDER BY o.created_at LIMIT p_limit FOR UPDATE OF o SKIP LOCKED
  LOOP
    BEGIN
      DELETE FROM blob b WHERE b.tenant = old.tenant AND b.sha256 = old.sha256;
      gone := gone + 1;
    EXCEPTION WHEN foreign_key_violation THEN
      NULL;
    END;
  END LOOP;
  RETURN gone;
END $$;
