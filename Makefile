# The front door: every target sets up what it needs (see packages.txt), builds and does its job. CMake does the work.
PREFIX ?= /usr/local
WERROR ?= OFF
JOBS ?= $(shell nproc)
CTEST_ARGS ?=

configure = cmake --preset $(1) -DBURST_WERROR=$(WERROR) >build/$(1).log 2>&1 || { cat build/$(1).log; exit 1; }
build = mkdir -p build && $(call configure,$(1)) && cmake --build --preset $(1) -j $(JOBS)
sources = $(shell find include src cli tests examples bench -name '*.[ch]')

# Under the sanitizers: not the longest; under tsan also not what has no threads of its own.
ASAN_SKIP ?= ^test_words
TSAN_SKIP ?= ^(test_words|test_words_ranks|words_list|test_mask|test_overlap|test_isa|test_properties)$$
AARCH64_SKIP ?= ^(test_words|test_words_ranks|test_mask|test_overlap|test_ring|test_routes|test_exchange|test_transport|test_faults)$$

.PHONY: all demo check check-long asan tsan format check-format check-aarch64 peers hosts experiments install clean help

all:
	@tools/setup build
	@$(call build,release) --target product

demo: all
	@build/release/burst demo

check:
	@tools/setup build test
	@$(call build,release)
	ctest --preset release -j $(JOBS) $(CTEST_ARGS)

check-long:
	@tools/setup build test
	@$(call build,release)
	ctest --preset release -C long -j $(JOBS) $(CTEST_ARGS)

asan:
	@tools/setup build test
	@$(call build,asan)
	ctest --preset asan -j $(JOBS) -E '$(ASAN_SKIP)' $(CTEST_ARGS)

tsan:
	@tools/setup build test
	@$(call build,tsan)
	ctest --preset tsan -j $(JOBS) -E '$(TSAN_SKIP)' $(CTEST_ARGS)

# All tests that touch a kernel, and a list of small words, on NEON, emulated.
check-aarch64:
	@tools/setup build aarch64
	@$(call build,aarch64)
	ctest --preset aarch64 -j $(JOBS) -E '$(AARCH64_SKIP)' $(CTEST_ARGS)

format:
	@tools/setup format
	clang-format -i $(sources)

check-format:
	@tools/setup format
	@clang-format --dry-run -Werror $(sources) && echo "format: fine"

# Times Burst beside PyTorch; writes docs/peers.md and docs/peers.json. PEERS_ARGS: see bench/peers.py --help.
peers: all
	@tools/setup peers
	@test -x .venv/bin/python || python3 -m venv .venv
	@.venv/bin/python -c 'import numpy, torch; assert torch.__version__.split("+")[0] == "2.13.0"' 2>/dev/null \
	    || .venv/bin/pip install --quiet -r bench/requirements.txt
	.venv/bin/python bench/peers.py $(PEERS_ARGS)

# MPI ranks across emulated hosts (network namespaces; root): what a slow link costs, with and without overlap.
hosts: all
	@tools/setup build test
	bash tests/hosts.sh build/release/burst measure

# Every system beside every other; writes docs/experiments.md, its pictures and the raw JSON. FULL=1: longer sequences.
# The hosts need root. EXPERIMENTS_ARGS: see bench/experiments.py --help.
experiments: all
	@tools/setup test peers
	@test -x .venv/bin/python || python3 -m venv .venv
	@.venv/bin/python -c 'import matplotlib' 2>/dev/null || .venv/bin/pip install --quiet -r bench/experiments.txt
	.venv/bin/python bench/experiments.py $(if $(FULL),--full) $(EXPERIMENTS_ARGS)

install: all
	cmake --install build/release --prefix $(PREFIX)

clean:
	rm -rf build

help:
	@echo 'make                       the libraries and the command, in build/release'
	@echo 'make demo                  one long causal attention, forward and backward, checked and timed'
	@echo 'make check                 all tests; check-long: the whole product of words too'
	@echo 'make asan, make tsan       the tests under the sanitizers'
	@echo 'make check-aarch64         the tests on NEON, cross-built and emulated'
	@echo 'make format, check-format  clang-format'
	@echo 'make peers                 Burst beside PyTorch (makes .venv)'
	@echo 'make hosts                 MPI over emulated hosts: what a slow link costs, with and without overlap'
	@echo 'make experiments           every system beside every other: tables and pictures in docs/ (makes .venv)'
	@echo 'make install PREFIX=...    installs; make clean removes build'
