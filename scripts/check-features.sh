#!/usr/bin/env bash
# Checks the buffer pool and the B+tree with the combinations of their features `ring0` and `bench` that `cargo clippy --workspace`
# does not check, and the C library of the store. The benchmarks enable both features for all packages. This script checks code and
# builds none.
set -euo pipefail
cd "$(dirname "$0")/.."

for features in '' ring0 bench; do
  echo "bedplate-bufpool and bedplate-btree with the features: ${features:-none}"
  cargo clippy --locked -p bedplate-bufpool -p bedplate-btree --all-targets --features "$features" -- -D warnings
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
