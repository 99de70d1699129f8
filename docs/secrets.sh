#!/bin/sh
# Writes random secrets for compose.yaml under ./secrets; files that exist are kept.
set -eu
mkdir -p secrets
chmod 700 secrets
# The files are readable to the container's user; the folder is closed to others on the host.
put() { [ -e "secrets/$1" ] || { printf '%s' "$2" > "secrets/$1"; chmod 644 "secrets/$1"; }; }
random() { od -An -N 32 -tx1 /dev/urandom | tr -d ' \n'; }
put admin_key "$(random)"
put console_key "$(random)"
put postgres_password "$(random)"
put database_url "postgresql+asyncpg://paceline:$(cat secrets/postgres_password)@db:5432/paceline"
echo "secrets/ is ready; the admin key is in secrets/admin_key"
