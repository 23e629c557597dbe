# Every target sets up what it needs in .venv: nothing but cargo, Python 3.11 or newer and a C compiler is taken as given.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CARGO ?= cargo
TRACE ?=
MODEL_OPERATIONS ?= 10000000

.DEFAULT_GOAL := help
.PHONY: help demo test test-rust test-python test-slow lint lineage-report bench bench-rust bench-python bench-report vectors stubs-check wheel clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "maturin>=1.9,<2" "pip>=25.1"

# The extension, release build, installed in place with the command line's two dependencies.
RUST_SOURCES := $(shell find rust/*/src -name '*.rs') $(wildcard rust/*/Cargo.toml) Cargo.toml Cargo.lock pyproject.toml \
	cuda/block_copy.fatbin
$(VENV)/.built: $(BIN)/python $(RUST_SOURCES)
	PIP_QUIET=1 VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --quiet
	@touch $@

$(VENV)/.test: $(VENV)/.built pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group test
	@touch $@

$(VENV)/.lint: $(VENV)/.test pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group lint
	@touch $@

$(VENV)/.bench: $(VENV)/.test pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group bench
	@touch $@

demo: $(VENV)/.built ## Replay a trace through the manager and print the report (TRACE=file; without one, a generated trace)
	$(BIN)/kvpool replay $(TRACE)

test: test-rust test-python ## All tests, in minutes

test-rust: ## Tests of the Rust crates: units, models, properties, vectors, doc examples
	$(CARGO) test --locked --quiet

test-python: $(VENV)/.test ## Tests of the Python package
	$(BIN)/python -m pytest -q -m "not slow"

lineage-report: $(VENV)/.test ## What each test of an ancestor's face shows: ancestor, item, test, result
	$(BIN)/python -m pytest -q tests/lineage -m "lineage and not slow" --lineage-report

test-slow: $(VENV)/.test ## The model tests for longer: MODEL_OPERATIONS=n, and the slow Python tests
	KVPOOL_MODEL_OPERATIONS=$(MODEL_OPERATIONS) $(CARGO) test --locked --release -p kvpool \
		--test pool_model --test manager_model --test manager_tables --test sequences
	HYPOTHESIS_PROFILE=slow $(BIN)/python -m pytest -q -m "slow or not slow" --timeout 3600

lint: $(VENV)/.lint ## Formatters, linters, types, stubs against the binary
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --locked --quiet
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(MAKE) --no-print-directory stubs-check
	$(BIN)/python tools/make_hash_vectors.py --check

stubs-check: $(VENV)/.lint ## The stubs describe the binary
	MYPYPATH=python $(BIN)/stubtest kvpool._core --ignore-disjoint-bases --allowlist tests/stubtest_allowlist.txt

vectors: $(VENV)/.test ## Make the published hash vectors again, from Python alone
	$(BIN)/python tools/make_hash_vectors.py

bench: bench-rust bench-python ## All benches

bench-rust: ## Criterion benches of the core
	$(CARGO) bench --locked -p kvpool-benches

bench-python: $(VENV)/.bench ## Calls from Python
	$(BIN)/python -m pytest -q benches/python --benchmark-only --benchmark-disable-gc \
		--benchmark-columns=min,median,mean,max,rounds --benchmark-json=target/python-benches.json

bench-report: bench ## All benches, and a dated table of them in benches/results
	$(CARGO) bench --quiet --locked -p kvpool-benches --bench memory > target/memory-bench.txt
	$(BIN)/python benches/summarize.py --python target/python-benches.json --memory target/memory-bench.txt

wheel: $(BIN)/python ## An abi3 wheel in dist/
	$(BIN)/maturin build --release --out dist

clean: ## Remove everything that was built
	rm -rf $(VENV) target dist
