#!/usr/bin/env bash
# Looks for data races between the writers and the optimistic readers of a page, and for other undefined behaviour there,
# with Miri. It runs the tests of `access::races` in bedplate-bufpool, which need no kernel.
#
#   scripts/test-races.sh [SEEDS]      how many schedules of the threads Miri tries, 8 unless told
#
# Miri is only in nightly toolchains, so this is no part of `make test`. `NIGHTLY` names the toolchain.
set -euo pipefail
cd "$(dirname "$0")/.."
seeds=${1:-8}
# Other versions of Miri may refuse other things: this one has been tried.
nightly=${NIGHTLY:-nightly-2026-10-30}

rustup toolchain install "$nightly" --profile minimal --component miri,rust-src
export MIRIFLAGS="-Zmiri-many-seeds=0..$seeds"
cargo "+$nightly" miri test --locked --target-dir "${CARGO_TARGET_DIR:-target}/miri" -p bedplate-bufpool --lib access::races
