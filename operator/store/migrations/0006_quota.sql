-- What a namespace may store, in logical bytes: what people see, however often the same content is there.
CREATE TABLE quota (
  tenant uuid PRIMARY KEY REFERENCES tenant,
  stored_bytes bigint NOT NULL
);
-- How many uploads of a workspace are open.
CREATE INDEX upload_workspace ON upload (workspace);
CREATE INDEX workspace_tenant ON workspace (tenant) WHERE deleted_at IS NULL;

-- Where a workspace grows, within the commit that makes it. The row of the quota is held, so two that grow at once are counted
-- one after the other. LT007: more than is allowed.
CREATE FUNCTION charge_quota() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  allowed bigint;
  others bigint;
BEGIN
  SELECT q.stored_bytes INTO allowed FROM quota q WHERE q.tenant = NEW.tenant FOR UPDATE;
  IF NOT FOUND THEN RETURN NEW; END IF;
  SELECT COALESCE(sum(w.bytes), 0) INTO others FROM workspace w WHERE w.tenant = NEW.tenant AND w.deleted_at IS NULL AND w.id <> NEW.id;
  IF others + NEW.bytes > allowed THEN
    RAISE EXCEPTION 'the workspaces of namespace % would have % bytes, its WorkspaceQuota allows % (storedBytes); delete files or ask for more',
      NEW.namespace, others + NEW.bytes, allowed USING ERRCODE = 'LT007';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER workspace_quota BEFORE UPDATE OF bytes ON workspace
  FOR EACH ROW WHEN (NEW.bytes > OLD.bytes) EXECUTE FUNCTION charge_quota();
