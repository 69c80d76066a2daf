#!/bin/bash
# Postgres as a user of no rights: makes its cluster when there is none, then serves with the settings given as arguments.
# Reads the variables that the official image reads: PGDATA, POSTGRES_USER, POSTGRES_PASSWORD_FILE.
set -euo pipefail
data="${PGDATA:?}"
if [ ! -s "$data/PG_VERSION" ]; then
  # A start that broke in the middle leaves a folder that is no cluster.
  rm -rf "$data.new"
  initdb -D "$data.new" -U "${POSTGRES_USER:?}" --pwfile="${POSTGRES_PASSWORD_FILE:?}" --auth-local=trust \
    --auth-host=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8
  echo 'host all all all scram-sha-256' >> "$data.new/pg_hba.conf"
  sync "$data.new/pg_hba.conf"
  mv "$data.new" "$data"
fi
# The kubelet may have opened the volume to the group; Postgres refuses such a folder.
chmod 0700 "$data"
exec postgres -D "$data" "$@"
