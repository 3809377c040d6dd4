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
# Tests with many interrupts, and writers that do nothing but write, need processors that work at the same time
# (docs/vm.md); so do kerneldb and snapshot/region_model, which do not use KVM. Guests in which snapshots are taken under
# load must not live long: each such test has its own. Whoever waits must leave the processor to others, which shows where
# there is only one.
apart=() parallel=() pools=() single=() others=()
while read -r test binary; do
  case $test in
  ring0/interrupts | ring0/page_tables | ring0/signals_in_ring0) parallel+=("$binary") ;;
  ring0/*) others+=("$binary") ;;
  kerneldb/hashmap | kerneldb/operators) parallel+=("$binary") ;;
  snapshot/ring0_load | snapshot/engines) apart+=("$binary") ;;
  snapshot/ring0_*) others+=("$binary") ;;
  bufpool/pool | bufpool/threads | bufpool/ring0 | bufpool/prefetch) pools+=("$binary") ;;
  btree/threads | btree/limits) pools+=("$binary") ;;
  snapshot/region_model) parallel+=("$binary") ;;
  bufpool/waiting | bufpool/limits) single+=("$binary") ;;
  esac
done < <(sort <<<"$tests")

guest() { "${CARGO_TARGET_DIR:-target}/debug/bedplate" vm test "$@"; }
for kernel in "${series[@]}"; do
  guest --kernel "$kernel" --timeout 4m "${others[@]}"
  guest --kernel "$kernel" --timeout 4m --parallel "${parallel[@]}"
  guest --kernel "$kernel" --timeout 8m "${pools[@]}"
  guest --kernel "$kernel" --timeout 4m --cpus 1 "${single[@]}"
  for binary in "${apart[@]}"; do
    for name in $("$binary" --list --format terse | sed -n 's/: test$//p'); do
      guest --kernel "$kernel" --timeout 90s --parallel --arg --exact --arg "$name" "$binary"
    done
  done
done
