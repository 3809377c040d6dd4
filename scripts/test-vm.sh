#!/usr/bin/env bash
# Builds the tests that need a processor's ring 0, and those of engines that older kernels may treat otherwise, and runs
# them on stock kernels in virtual machines.
#
#   scripts/test-vm.sh [SERIES...]     the kernels, 6.1 and 6.12 unless told
set -euo pipefail
cd "$(dirname "$0")/.."
series=("$@")
((${#series[@]})) || series=(6.1 6.12)

# What `make unit` builds, so that it has been built already: packages by themselves would be built anew, with fewer
# features. A line for each integration test: `package/test executable`.
tests=$(cargo test --locked --workspace --no-run --message-format=json-render-diagnostics |
  sed -n 's|.*"package_id":"[^"]*#bedplate-\([^@"]*\)@.*"kind":\["test"\].*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*|\1/\2 \3|p')
# Tests that run in the virtual machines, and of those again the ones that run with one processor, too: a thread that
# waits must leave the processor to others. A name may be a pattern.
guest=(
  'ring0/*' 'snapshot/ring0_*' snapshot/engines snapshot/region_model
  snapshot/handles snapshot/changes snapshot/walks snapshot/growth snapshot/heap
  bufpool/pool bufpool/threads bufpool/ring0 bufpool/prefetch bufpool/replacement bufpool/waiting bufpool/limits
  bufpool/faults bufpool/crash bufpool/fsync bufpool/damage bufpool/log bufpool/model
  btree/threads btree/limits btree/ahead btree/crash
  scan/stamps kerneldb/hashmap kerneldb/operators kerneldb-redis/server_hash_map
)
single=(bufpool/waiting bufpool/limits)
# Tests that run natively only, of the crates that have an engine in ring 0: files without a pool; loop devices, for which
# the guests have no tools; processes that are killed, and many operations of one thread, both of which take minutes there;
# the page provider and page sizes, which the engine in ring 0 does not have;
# and what is the same with every engine: the order of writes, formats, latches, and the store.
native=(
  bufpool/storage bufpool/devices bufpool/kill btree/space btree/damage btree/model
  bufpool/double_write bufpool/fairness bufpool/format bufpool/missing bufpool/page_size bufpool/provider bufpool/reopen
  btree/latches btree/store 'btree/store_*' btree/tutorial
)

# Whether a test is in a list.
is_in() {
  local test=$1 name
  shift
  for name; do
    # shellcheck disable=SC2053 # It is a pattern.
    [[ $test == $name ]] && return
  done
  return 1
}
all=() one=() names=()
while read -r test binary; do
  names+=("$test")
  if is_in "$test" "${guest[@]}"; then all+=("$binary"); fi
  if is_in "$test" "${single[@]}"; then one+=("$binary"); fi
done < <(sort <<<"$tests")
# A test that has another name now, or a new one, must not be left out unnoticed.
wrong=0
for name in "${guest[@]}" "${single[@]}" "${native[@]}"; do
  found=0
  for test in "${names[@]}"; do
    if is_in "$test" "$name"; then found=1; fi
  done
  ((found)) || { echo "scripts/test-vm.sh: no test is called $name: correct the lists" >&2; wrong=1; }
done
for test in "${names[@]}"; do
  case $test in
  bufpool/* | btree/*)
    is_in "$test" "${guest[@]}" "${native[@]}" || {
      echo "scripts/test-vm.sh: $test is in none of the lists: should it run in the virtual machines?" >&2
      wrong=1
    }
    ;;
  esac
done
((!wrong)) || exit 1

run() { "${CARGO_TARGET_DIR:-target}/debug/bedplate" vm test "$@"; }
for kernel in "${series[@]}"; do
  # The guest has all these binaries in its memory, twice while it boots.
  run --kernel "$kernel" --memory 6G --timeout 15m "${all[@]}"
  run --kernel "$kernel" --timeout 4m --cpus 1 "${one[@]}"
done
