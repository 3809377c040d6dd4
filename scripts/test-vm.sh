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
# Whoever waits must leave the processor to others, which shows where there is only one.
all=() single=()
while read -r test binary; do
  case $test in
  bufpool/waiting | bufpool/limits) all+=("$binary") single+=("$binary") ;;
  ring0/* | snapshot/ring0_* | snapshot/engines | snapshot/region_model) all+=("$binary") ;;
  snapshot/handles | snapshot/changes | snapshot/walks | snapshot/growth | snapshot/heap) all+=("$binary") ;;
  bufpool/pool | bufpool/threads | bufpool/ring0 | bufpool/prefetch | bufpool/replacement) all+=("$binary") ;;
  btree/threads | btree/limits | btree/ahead) all+=("$binary") ;;
  scan/stamps | kerneldb/hashmap | kerneldb/operators) all+=("$binary") ;;
  esac
done < <(sort <<<"$tests")

guest() { "${CARGO_TARGET_DIR:-target}/debug/bedplate" vm test "$@"; }
for kernel in "${series[@]}"; do
  # The guest has all these binaries in its memory, twice while it boots.
  guest --kernel "$kernel" --memory 6G --timeout 10m "${all[@]}"
  guest --kernel "$kernel" --timeout 4m --cpus 1 "${single[@]}"
done
