-- A content that is still arriving: nobody reads it, and it is gone once it is a blob or was given up. What a killed
-- process left is known by its age. Not worth a log: a server that crashed has nobody who would go on with it.
CREATE UNLOGGED TABLE blob_staging (
  id uuid NOT NULL,
  ordinal int NOT NULL,
  data bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (id, ordinal)
);
ALTER TABLE blob_staging ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX blob_staging_age ON blob_staging (created_at);
