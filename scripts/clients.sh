#!/usr/bin/env bash
# Client libraries of Redis in several languages, which the tests run against the server. The programs that use them, and the files
# that pin their versions, are in crates/cli/tests/clients.
#
#   scripts/clients.sh fetch               fetches the libraries of each language that this machine has the tools for
#   scripts/clients.sh missing LANGUAGE    says why a language (python, node, go, java) cannot be used; says nothing if it can be
#
# Idempotent and without questions: what is there in the pinned versions is left alone, and nothing is downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$PWD/crates/cli/tests/clients
cache=${XDG_CACHE_HOME:-$HOME/.cache}/bedplate/clients
# A Go that is too old says so, instead of downloading another one.
export GOTOOLCHAIN=local

# Seconds after which a language is given up: a network that drops packets would stop the set-up.
limit=300

say() { printf 'setup: %s\n' "$*"; }
have() { command -v "$1" >/dev/null 2>&1; }

# need TOOL VERSION FOUND: says what is missing unless the version that was found is recent enough.
need() {
  local tool=$1 wanted=$2 found=$3
  if [[ -z $found ]]; then
    echo "there is no $tool"
  elif [[ $(printf '%s\n' "$wanted" "$found" | sort -V | head -1) != "$wanted" ]]; then
    echo "$tool is version $found, and the libraries need $wanted"
  fi
}

missing() {
  case $1 in
  python) need /usr/bin/python3 3.10 "$(/usr/bin/python3 -c 'import platform; print(platform.python_version())' 2>/dev/null)" ;;
  node)
    need node 20 "$(node --version 2>/dev/null | tr -d v)"
    have npm || echo "there is no npm"
    ;;
  go) need go "$(sed -n 's/^go //p' "$programs/go/go.mod")" "$(go env GOVERSION 2>/dev/null | sed 's/^go//')" ;;
  java)
    need javac 11 "$(javac -version 2>&1 | sed -n 's/^javac //p')"
    have java || echo "there is no java"
    have mvn || echo "there is no mvn (Maven)"
    ;;
  *) echo "unknown language $1" ;;
  esac
}

# The files that pin the versions of a language. A copy of them beside the libraries says which versions those are.
pins() {
  case $1 in
  python) echo requirements.txt ;;
  node) echo package.json package-lock.json ;;
  go) echo go.mod go.sum ;;
  java) echo pom.xml jars.sha256 ;;
  esac
}

is_current() {
  local file
  for file in $(pins "$1"); do
    cmp -s "$programs/$1/$file" "$cache/$1/$file" || return 1
  done
}

# Each of these fetches into the folder $1, which has the files that pin the versions. pip, npm and go check the checksums in them.
fetch_python() {
  local python
  for python in python3 /usr/bin/python3; do
    "$python" -m pip --version >/dev/null 2>&1 && break
  done
  timeout "$limit" "$python" -m pip install --retries 2 --timeout 20 --quiet --disable-pip-version-check --no-input --no-deps --no-compile --root-user-action ignore \
    --only-binary :all: --require-hashes --target "$1/packages" --requirement "$1/requirements.txt"
}

fetch_node() {
  timeout "$limit" npm ci --fetch-retries 1 --prefix "$1" --silent --ignore-scripts --no-audit --no-fund --no-update-notifier
}

fetch_go() {
  # The first compilation of the libraries takes long. It is done here, so that the tests compile their program only.
  (cd "$programs/go" && GOFLAGS=-modcacherw GOMODCACHE=$cache/go-modules GOCACHE=$cache/go-build timeout "$limit" go build -o /dev/null .)
}

fetch_java() {
  timeout "$limit" mvn --quiet --batch-mode --log-file "$1/log" --strict-checksums --file "$1/pom.xml" \
    dependency:copy-dependencies -DoutputDirectory="$1/jars" || { cat "$1/log"; return 1; }
  # Maven compares with the checksums that its registry has; these are our own.
  (cd "$1/jars" && sha256sum --quiet --check ../jars.sha256)
}

fetch() {
  local language=$1 folder file status=0
  # An interrupted set-up may have left it.
  folder=$cache/.fetch-$language
  { rm -rf "$folder" && mkdir -p "$folder"; } || return 1
  for file in $(pins "$language"); do
    cp "$programs/$language/$file" "$folder"
  done
  # The move comes last, so that an interrupted set-up leaves nothing that looks complete.
  { "fetch_$language" "$folder" && rm -rf "${cache:?}/$language" && mv "$folder" "$cache/$language"; } || status=1
  rm -rf "$folder"
  return $status
}

case ${1:-} in
fetch)
  for language in python node go java; do
    reason=$(missing "$language" | paste -sd ';')
    if [[ -n $reason ]]; then
      say "the tests of client libraries in $language will say that they are skipped: $reason"
    elif ! is_current "$language"; then
      say "fetching client libraries of Redis in $language into $cache/$language"
      fetch "$language" || say "they could not be fetched: their tests will fail"
    fi
  done
  ;;
missing) missing "${2:?a language}" ;;
*)
  sed -n '5,6s/^# *//p' "$0" >&2
  exit 2
  ;;
esac
