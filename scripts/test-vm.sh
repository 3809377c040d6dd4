#!/usr/bin/env bash
# Builds the tests that need a processor's ring 0, and those of engines that kernels may treat otherwise, and runs
# them on stock kernels in virtual machines.
#
#   scripts/test-vm.sh [KERNEL...]     6.1, 6.12 and backports unless told; an image's file gets the tests of 6.12
set -euo pipefail
cd "$(dirname "$0")/.."
guests=("$@")
((${#guests[@]})) || guests=(6.1 6.12 backports)

# What `make unit` builds, so that it has been built already: packages by themselves would be built anew, with fewer
# features. A line for each integration test: `package/test executable`.
tests=$(cargo test --locked --workspace --no-run --message-format=json-render-diagnostics |
  sed -n 's|.*"package_id":"[^"]*#bedplate-\([^@"]*\)@.*"kind":\["test"\].*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*|\1/\2 \3|p')
# Tests of the code that calls the kernel: ring 0 and KVM, userfaultfd, io_uring, mappings. A name may be a pattern.
interface_tests=(
  'ring0/*' 'snapshot/ring0_*' snapshot/engines snapshot/growth
  bufpool/pool bufpool/ring0 bufpool/prefetch bufpool/waiting bufpool/limits scan/stamps
)
# Tests of the code that calls the kernel by that code only. They need ring 0, and run on one kernel.
library_tests=(
  snapshot/region_model snapshot/handles snapshot/changes snapshot/walks snapshot/heap
  bufpool/threads bufpool/replacement bufpool/faults bufpool/crash bufpool/fsync bufpool/damage bufpool/log bufpool/model
  btree/threads btree/ahead btree/limits btree/crash
)
# Tests that also run with one processor, because a thread that waits must leave the processor to others.
one_processor_tests=(bufpool/waiting bufpool/limits)
# Tests of the database on hash maps, which is for kernels before 6.14; and some of those in arenas, which newer kernels have. In software
# it takes ten seconds until the kernel has verified the programs of a server in arenas, and most tests start several.
hash_map_tests=(kerneldb/hashmap kerneldb/operators kerneldb-redis/server_hash_map kerneldb-redis/verifier)
arena_tests=(kerneldb-redis/server_protocol kerneldb-redis/verifier)
# Tests that run natively only, of the crates that have an engine in ring 0: files without a pool; loop devices, for which
# the guests have no tools; processes that are killed, and many operations of one thread, both of which take minutes there;
# the page provider and page sizes, which the engine in ring 0 does not have;
# and what is the same with every engine: the order of writes, formats, latches, and the store.
native_tests=(
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
names=()
declare -A binary_of
while read -r test binary; do
  names+=("$test")
  binary_of[$test]=$binary
done < <(sort <<<"$tests")
# A test that has another name now, or a new one, must not be left out unnoticed.
wrong=0
listed=("${interface_tests[@]}" "${library_tests[@]}" "${native_tests[@]}")
for name in "${listed[@]}" "${one_processor_tests[@]}" "${hash_map_tests[@]}" "${arena_tests[@]}"; do
  found=0
  for test in "${names[@]}"; do
    if is_in "$test" "$name"; then found=1; fi
  done
  ((found)) || { echo "scripts/test-vm.sh: no test is called $name: correct the lists" >&2; wrong=1; }
done
for test in "${names[@]}"; do
  case $test in
  bufpool/* | btree/*)
    is_in "$test" "${listed[@]}" || {
      echo "scripts/test-vm.sh: $test is in none of the lists: should it run in the virtual machines?" >&2
      wrong=1
    }
    ;;
  esac
done
((!wrong)) || exit 1

# Runs tests in a guest: run KERNEL NAME... -- OPTION...
run() {
  local kernel=$1 wanted=() binaries=() test
  shift
  while [[ $1 != -- ]]; do wanted+=("$1"); shift; done
  shift
  for test in "${names[@]}"; do
    if is_in "$test" "${wanted[@]}"; then binaries+=("${binary_of[$test]}"); fi
  done
  "${CARGO_TARGET_DIR:-target}/debug/bedplate" vm test --kernel "$kernel" "$@" "${binaries[@]}"
}
# A guest has all these binaries in its memory, twice while it boots.
options=(--memory 6G --timeout 40m)
for guest in "${guests[@]}"; do
  case $guest in
  6.1) run "$guest" "${interface_tests[@]}" "${hash_map_tests[@]}" -- "${options[@]}" ;;
  backports) run "$guest" 'ring0/*' "${arena_tests[@]}" -- "${options[@]}" ;;
  *) run "$guest" "${interface_tests[@]}" "${library_tests[@]}" "${hash_map_tests[@]}" -- "${options[@]}" ;;
  esac
  if [[ $guest != backports ]]; then run "$guest" "${one_processor_tests[@]}" -- --timeout 10m --cpus 1; fi
done
