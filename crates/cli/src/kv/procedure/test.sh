#!/usr/bin/env bash
# Calls the procedures on a server of its own, and starts that server anew in between. Needs redis-cli.
set -euo pipefail
cd "$(dirname "$0")"

data=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; wait; rm -rf "$data"' EXIT

start() {
  "${BEDPLATE:-bedplate}" kv serve --port 0 --memory 64M --data-dir "$data/data" --procedure NAME.bpf.o \
    >"$data/ready" 2>"$data/log" &
  server=$!
  for _ in $(seq 600); do
    port=$(sed -n 's/^ready on .*://p' "$data/ready")
    [ -z "$port" ] || return 0
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  cat "$data/log" >&2
  echo "the server does not start" >&2
  exit 1
}

stop() {
  kill "$server"
  wait "$server"
  server=
}

# expect REPLY COMMAND...
expect() {
  local wanted=$1 reply
  shift
  reply=$(redis-cli -p "$port" "$@")
  if [ "$reply" != "$wanted" ]; then
    echo "$*: '$reply' instead of '$wanted'" >&2
    exit 1
  fi
}

start
expect "" CALL NAME_left ann
expect 10 CALL NAME_grant ann 10
expect 7 CALL NAME_take ann 3
expect "QUOTA too few units are left" CALL NAME_take ann 8
stop
start
expect 7 CALL NAME_left ann
expect 7 GET NAME:ann
stop
echo "NAME: all calls have the expected replies"
