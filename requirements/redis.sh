#!/usr/bin/env bash
# Installs the Redis server that tests start, from Debian or Ubuntu. Without root it says the command.
set -euo pipefail
command -v redis-server >/dev/null && exit 0

if [ "$(id -u)" -ne 0 ]; then
  echo "group_embedding: the tests of Redis need its server: sudo apt-get install redis-server" >&2
  exit 1
fi
options=(-qq -o Acquire::Retries=1 -o Acquire::http::Timeout=30)
# The package must not start a server of its own.
export RUNLEVEL=1
apt-get update "${options[@]}" && apt-get install "${options[@]}" -y --no-install-recommends redis-server >/dev/null || {
  echo "group_embedding: tests of Redis are left out, as apt-get could not install redis-server" >&2
  exit 1
}
