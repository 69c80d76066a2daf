#!/bin/bash
# Postgres as a user of no rights: makes its cluster when there is none, then serves. Password from a file.
set -euo pipefail
data="${PGDATA:?}"
if [ ! -s "$data/PG_VERSION" ]; then
  # A start that broke in the middle leaves a folder that is no cluster.
  rm -rf "$data.new"
  initdb -D "$data.new" -U lathe --auth-local=trust --auth-host=scram-sha-256 --pwfile="${POSTGRES_PASSWORD_FILE:?}" --encoding=UTF8 --locale=C.UTF-8
  echo 'host all all all scram-sha-256' >> "$data.new/pg_hba.conf"
  mv "$data.new" "$data"
fi
exec postgres -D "$data" -c listen_addresses='*' -c unix_socket_directories=/run/postgresql -c max_connections=200 \
  -c shared_buffers="${SHARED_BUFFERS:-128MB}" -c wal_compression=on -c password_encryption=scram-sha-256
