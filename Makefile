# Bedplate: the commands a person needs. `make help` lists them.
#
# Every target that builds calls scripts/setup.sh first; it changes nothing when nothing is missing.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# cargo where rustup puts it, also for shells that do not have it in their PATH yet.
export PATH := $(PATH):$(HOME)/.cargo/bin

# bindgen must read C with the same clang that compiles the eBPF programs; a machine may have several.
ifneq ($(wildcard /usr/lib/llvm-19/lib),)
export LIBCLANG_PATH ?= /usr/lib/llvm-19/lib
endif

# Loading eBPF programs takes root: when make runs as somebody else, only the finished programs are run
# through sudo, never the compiler.
ifneq ($(shell id -u),0)
SUDO := sudo
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER ?= sudo -E
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER ?= sudo -E
endif

# The libraries for other programs, except for the store's.
LIBRARIES := $(addprefix -p bedplate-,ring0-preload ring0-c snapshot-preload snapshot-malloc scan-c scan-preload snapshot-c)

# Where `make install` puts things; DESTDIR is for those who make packages.
PREFIX ?= /usr/local
# Where `make install` finds what was built.
BUILT ?= target/release
# The libraries for C programs that are installed.
C_LIBRARIES ?= ring0 scan snapshot store
# What a system needs for snapshots beside programs: a group, a rule for udev, a drop-in for systemd.
SERVICE := crates/snapshot-preload/service
BIND ?= 127.0.0.1
PORT ?= 6380
DATA ?= ./data
# More options for the server: make run ARGS="--memory 4G --durability sync"
ARGS ?=
# What `make bench` runs, and how thoroughly: make bench BENCH=kv-net BENCH_ARGS=--full
BENCH ?= kv-local
BENCH_ARGS ?= --quick

.PHONY: help setup build install install-libraries run doctor test fmt lint docs unit test-vm races bench clean postgres postgres-build postgres-install datafusion datafusion-build

help: ## Show this list
	@echo "Bedplate: make TARGET"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## Install what is missing (changes nothing when nothing is)
	@scripts/setup.sh

build: setup ## Build the optimised bedplate command and libraries
	cargo build --locked --release -p bedplate-cli $(LIBRARIES)
# cargo builds this library by itself: together with the command, the library would get the features that benchmarks need.
	cargo build --locked --release -p bedplate-store-c

install: install-libraries ## Install what was built (make build) below PREFIX, which is /usr/local: the command, libraries, their manuals
	install -d "$(DESTDIR)$(PREFIX)"/{bin,lib/sysusers.d,lib/udev/rules.d} "$(DESTDIR)$(PREFIX)"/share/{bedplate,man/man1}
	install -m 755 "$(BUILT)/bedplate" "$(DESTDIR)$(PREFIX)/bin"
# The command looks for the libraries that it preloads in ../lib.
	install -m 755 "$(BUILT)"/libbedplate_{snapshot_preload,snapshot_malloc,ring0_preload,scan_preload}.so "$(DESTDIR)$(PREFIX)/lib"
	install -m 644 $(SERVICE)/60-bedplate.rules "$(DESTDIR)$(PREFIX)/lib/udev/rules.d"
	install -m 644 $(SERVICE)/bedplate.conf "$(DESTDIR)$(PREFIX)/lib/sysusers.d"
	sed -e "s|@PREFIX@|$(PREFIX)|" $(SERVICE)/redis-server-snapshots.conf.in | \
	  install -m 644 /dev/stdin "$(DESTDIR)$(PREFIX)/share/bedplate/redis-server-snapshots.conf"
	install -m 644 docs/man/*.1 "$(DESTDIR)$(PREFIX)/share/man/man1"
	for example in packet-quota exec-audit orders; do \
	  install -d "$(DESTDIR)$(PREFIX)/share/bedplate/examples/$$example"; \
	  install -m 644 examples/kerneldb/$$example/{README.md,Makefile,*.bpf.c} "$(DESTDIR)$(PREFIX)/share/bedplate/examples/$$example"; \
	done
	@echo
	@echo "Installed below $(DESTDIR)$(PREFIX). Snapshots for ordinary users and for services take two steps more:"
	@echo "  the group bedplate and its device:  systemd-sysusers && udevadm control --reload && udevadm trigger --sysname-match=userfaultfd"
	@echo "  a service for Redis:                $(PREFIX)/share/bedplate/redis-server-snapshots.conf says how"

install-libraries: ## Install the libraries for C programs alone, or some of them: make install-libraries C_LIBRARIES=store
	install -d "$(DESTDIR)$(PREFIX)"/{lib/pkgconfig,include/bedplate,share/man/man3}
	version=$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml); \
	for name in $(C_LIBRARIES); do \
	  install -m 755 "$(BUILT)/libbedplate_$$name.so" "$(DESTDIR)$(PREFIX)/lib"; \
	  install -m 644 "$(BUILT)/libbedplate_$$name.a" "$(DESTDIR)$(PREFIX)/lib"; \
	  install -m 644 "crates/$$name-c/include/bedplate/$$name.h" "$(DESTDIR)$(PREFIX)/include/bedplate"; \
	  if [[ $$name == ring0 ]]; then continue; fi; \
	  sed -e "s|@PREFIX@|$(PREFIX)|" -e "s|@VERSION@|$$version|" crates/$$name-c/bedplate-$$name.pc.in | \
	  install -m 644 /dev/stdin "$(DESTDIR)$(PREFIX)/lib/pkgconfig/bedplate-$$name.pc"; \
	  install -m 644 "docs/man/bedplate-$$name.3" "$(DESTDIR)$(PREFIX)/share/man/man3"; \
	done

run: build ## Start the server on 127.0.0.1:6380 with its data in ./data
	@echo
	@echo "Bedplate serves Redis clients on $(BIND):$(PORT); data in $(DATA)."
	@echo "  Talk to it:   redis-cli -h $(BIND) -p $(PORT)"
	@echo "  Watch it:     $(strip $(SUDO) target/release/bedplate) kv stats --port $(PORT)"
	@echo "  Stop it:      Ctrl-C"
	@echo
	@exec $(SUDO) target/release/bedplate kv serve --bind $(BIND) --port $(PORT) --data-dir $(DATA) $(ARGS)

doctor: build ## Say what this machine allows, component by component
	@$(SUDO) target/release/bedplate doctor

test: setup fmt lint docs unit test-vm ## Check formatting, lints and documentation, then run every test

fmt:
	cargo fmt --all --check

lint:
	cargo clippy --locked --workspace --all-targets -- -D warnings
	scripts/check-features.sh

docs:
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items

unit:
# Tests use the libraries for other programs, which are built here once for all of them.
	cargo build --locked $(LIBRARIES) -p bedplate-store-c
# Some tests open more than 1024 files, the usual soft limit.
	[[ $$(ulimit -Sn) == unlimited ]] || (( $$(ulimit -Sn) >= 16384 )) || ulimit -Sn 16384 || ulimit -Sn "$$(ulimit -Hn)"; \
	BEDPLATE_TEST_BUILT=1 cargo test --locked --workspace --no-fail-fast

test-vm: setup ## Run the tests that need ring 0 or older kernels, on stock kernels in virtual machines
	scripts/test-vm.sh

races: setup ## Look for data races of the buffer pool's readers and writers with Miri, which a nightly toolchain has
	scripts/test-races.sh

postgres: postgres-build ## Build the extension for each PostgreSQL on this machine, and run its tests
	cargo test --locked -p bedplate-postgres-suite

postgres-build: setup ## Build the extension for each PostgreSQL on this machine, in target/postgresql/VERSION
	cargo build --locked --release -p bedplate-scan-c
	scripts/postgres.sh build

# Servers of the system belong to root; DESTDIR is for those who make packages.
postgres-install: ## Install the extension that was built (make postgres-build) into each PostgreSQL's own folders
	$(if $(DESTDIR),,$(SUDO)) env $(if $(DESTDIR),DESTDIR=$(DESTDIR)) $(if $(PG_CONFIG),PG_CONFIG=$(PG_CONFIG)) BUILT=$(BUILT) scripts/postgres.sh install

# A workspace of its own, because DataFusion takes long to compile. All commands have the same folder, the same profile, and
# --workspace: cargo would compile DataFusion again for another profile, and for one package alone, whose features differ.
DATAFUSION := --locked --release --workspace --manifest-path integrations/datafusion/Cargo.toml --target-dir target/datafusion

datafusion: datafusion-build ## Build the integrations of DataFusion and Ballista, which takes long, and run their tests
	cargo test $(DATAFUSION)

datafusion-build: setup ## Build bedplate-datafusion, bedplate-ballista and the example, in target/datafusion/release
	cargo build $(DATAFUSION) --bins --examples

bench: build ## Run a benchmark: make bench BENCH=kv-local BENCH_ARGS=--quick
	$(SUDO) target/release/bedplate bench $(BENCH) $(BENCH_ARGS)

clean: ## Delete what was built (not the data)
	cargo clean
