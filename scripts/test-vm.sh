#!/usr/bin/env bash
# Builds the tests that need a processor's ring 0, and those of kerneldb's and the buffer pool's engines for older
# kernels, and runs them on stock kernels in virtual machines.
#
#   scripts/test-vm.sh [SERIES...]     the kernels, 6.1 and 6.12 unless told
set -euo pipefail
cd "$(dirname "$0")/.."
series=("$@")
((${#series[@]})) || series=(6.1 6.12)

cargo build --locked --quiet -p bedplate-cli
target=${CARGO_TARGET_DIR:-target}
# "  Executable tests/enter.rs (target/debug/deps/enter-0123456789abcdef)"
# Of the snapshots' tests, those that are about ring 0, and those of what every engine promises.
mapfile -t binaries < <({
  cargo test --locked -p bedplate-ring0 --test '*' --no-run
  cargo test --locked -p bedplate-kerneldb --test hashmap --test operators --no-run
  cargo test --locked -p bedplate-snapshot --test 'ring0_*' --test engines --no-run
  cargo test --locked -p bedplate-bufpool --test pool --test threads --test ring0 --test prefetch --test waiting --no-run
} 2>&1 | tee >(cat >&2) | sed -n 's/^ *Executable .*(\(.*\))$/\1/p')
if ((${#binaries[@]} == 0)); then
  echo "test-vm: no tests were built" >&2
  exit 1
fi
# Tests with many interrupts, and writers that do nothing but write, need processors that work at the same time
# (docs/vm.md); so does kerneldb, which does not use KVM. Guests in which snapshots are taken under load must not live
# long: each such test has its own. Whoever waits must leave the processor to others, which shows where there is only one.
apart=() parallel=() pools=() single=() others=()
for binary in "${binaries[@]}"; do
  case ${binary##*/} in
  ring0_load-* | engines-*) apart+=("$binary") ;;
  pool-* | threads-* | ring0-* | prefetch-*) pools+=("$binary") ;;
  waiting-*) single+=("$binary") ;;
  hashmap-* | operators-* | interrupts-* | page_tables-* | signals_in_ring0-*) parallel+=("$binary") ;;
  *) others+=("$binary") ;;
  esac
done
for kernel in "${series[@]}"; do
  "$target/debug/bedplate" vm test --kernel "$kernel" --timeout 4m "${others[@]}"
  "$target/debug/bedplate" vm test --kernel "$kernel" --timeout 4m --parallel "${parallel[@]}"
  "$target/debug/bedplate" vm test --kernel "$kernel" --timeout 4m --parallel "${pools[@]}"
  "$target/debug/bedplate" vm test --kernel "$kernel" --timeout 4m --cpus 1 "${single[@]}"
  for binary in "${apart[@]}"; do
    for name in $("$binary" --list --format terse | sed -n 's/: test$//p'); do
      "$target/debug/bedplate" vm test --kernel "$kernel" --timeout 90s --parallel --arg --exact --arg "$name" "$binary"
    done
  done
done
