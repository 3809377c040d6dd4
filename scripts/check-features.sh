#!/usr/bin/env bash
# Checks the buffer pool and the B+tree with every combination of their features `ring0` and `bench`, and the C library of
# the store. `cargo clippy --workspace` checks one combination only, because the benchmarks enable both features for all
# packages. It compiles no code.
set -euo pipefail
cd "$(dirname "$0")/.."

for features in '' ring0 bench ring0,bench; do
  echo "bedplate-bufpool and bedplate-btree with the features: ${features:-none}"
  # A feature is named for each package: of several packages, cargo would enable it for those only that have it.
  enabled=()
  for feature in ${features//,/ }; do
    enabled+=("bedplate-bufpool/$feature" "bedplate-btree/$feature")
  done
  cargo clippy --locked -p bedplate-bufpool -p bedplate-btree --all-targets --features "${enabled[*]}" -- -D warnings
done

cargo check --locked -p bedplate-store-c

# Without the feature, no code of the crate ring0 is built.
for package in bufpool btree store-c; do
  dependencies=$(cargo tree --locked -p "bedplate-$package" -e normal --prefix none)
  if grep -q '^bedplate-ring0 ' <<<"$dependencies"; then
    echo "scripts/check-features.sh: bedplate-$package depends on bedplate-ring0 without the feature ring0" >&2
    exit 1
  fi
done
