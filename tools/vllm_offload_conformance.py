#!/usr/bin/env python3
"""Runs vLLM's own tests of KV offloading, stock and with kvpool inside, and compares the tests that pass.

    python tools/vllm_offload_conformance.py

``policy``: vLLM's managers, tiering included, with ``kvpool_lru`` where they have their LRU. ``manager``: kvpool's
manager where vLLM has its own with LRU. ``tier``: kvpool's store on a disk where vLLM's tests have their example of a
secondary tier. Each mode must pass what stock passes, except for the tests below, which look
into private attributes of the classes that are replaced and fail on those, and only those.

Needs the environment of tools/vllm_env.py. One process per mode, a minute together. Exit code 0: as it should be. 1: a
difference, or a run that broke.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.vllm_conformance import ConformanceError, Outcome, differences, read_junit, read_settings  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STOCK: Final = "stock"
OFFLOAD: Final = "tests/v1/kv_offload"
SHARED: Final = (
    f"{OFFLOAD}/cpu/test_manager.py",
    f"{OFFLOAD}/cpu/policies/test_factory.py",
    f"{OFFLOAD}/test_factory.py",
    "tests/v1/kv_connector/unit/offloading_connector/test_events.py",
)
TIERING: Final = tuple(
    f"{OFFLOAD}/tiering/test_{name}.py"
    for name in ("tiering_offloading", "backpressure", "metrics", "fs_tier", "obj_tier", "kvcr_tier")
)
#: The test files of each mode. Tiering derives from vLLM's manager: a policy reaches it, another manager does not.
MODES: Final = {"policy": SHARED + TIERING, "manager": SHARED, "tier": TIERING[:1]}
#: Tests that look into what is replaced, and at what.
PRIVATE: Final[Mapping[str, Mapping[str, str]]] = {
    "policy": {
        "test_lru_repeated_pin_cycles_compact_lazy_heap_entries": "_heap of the policy",
        "test_touch_propagates_to_all_tiers": "_ranks of the policy",
    },
    "manager": {
        "test_cpu_manager_reports_allocation_size_on_allocation_failure": "_allocate_chunks",
        "test_lru_batch_eviction_failure_is_atomic": "_policy",
        "test_lru_repeated_pin_cycles_compact_lazy_heap_entries": "_policy",
        "test_evictable_cache_chunk_count": "_num_evictable_cache_chunks",
        "test_touch_forwards_req_context_to_policy": "_policy",
        "test_request_finish_forwards_grouped_deduplicated_accesses": "_policy",
        "test_failed_store_records_access_once_and_uses_store_miss_hook": "_record_request_cache_access",
    },
    "tier": {
        "test_ref_cnt_protection_during_cascade": "completed_jobs of the example",
        "test_failed_promotion_keeps_only_successful_chunks": "completed_jobs of the example",
    },
}


def run(mode: str, files: Sequence[str], settings: Mapping[str, Any], timeout: float) -> Outcome:
    """Runs some of vLLM's test files in one process."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("KVPOOL_", "PYTEST_", "VLLM_"))}
    kept.update(settings["environment"])
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tools" / "vllm"), settings["tests"]])
    if mode != STOCK:
        kept["KVPOOL_OFFLOAD"] = mode
    with tempfile.TemporaryDirectory(prefix="kvpool-offload-") as scratch:
        junit = Path(scratch) / "junit.xml"
        command = [settings["python"], "-m", "pytest", *files, "-q", "--noconftest", "--tb=short", "--rootdir=."]
        command += ["-p", "no:cacheprovider", "-p", "offload_plugin", f"--junitxml={junit}"]
        command += [f"--config-file={ROOT / 'tools' / 'vllm' / 'pytest.ini'}"]
        try:
            done = subprocess.run(
                command, cwd=settings["tests"], env=kept, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise ConformanceError(f"{mode}: still running after {timeout:g} s") from None
        if not junit.exists():
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise ConformanceError(f"{mode}: pytest exited with {done.returncode} and wrote no results\n{tail}")
        return read_junit(junit)


def _function(test: str) -> str:
    """The name of a test's function, without its parameters."""
    return test.rpartition("::")[2].partition("[")[0]


def problems(mode: str, stock: set[str], outcome: Outcome) -> list[str]:
    """What differs from stock and should not, one line each."""
    found = []
    private = PRIVATE[mode]
    for line in differences(stock, outcome.passed):
        name = _function(line)
        if not (line.startswith("-") and name in private and line[2:] in outcome.failed):
            found.append(f"{mode}: {line}")
    failed = {_function(name) for name in outcome.failed}
    passing = sorted(set(private) - failed)
    return found + [f"{mode}: {name} passes, and is listed as one that cannot" for name in passing]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-vllm", help="the environment (default: .venv-vllm)")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one mode (default: 900)")
    options = parser.parse_args(argv)
    try:
        settings = read_settings(options.venv.absolute())
        outcomes = {STOCK: run(STOCK, MODES["policy"], settings, options.timeout)}
        found = [] if outcomes[STOCK].passed else ["stock: no test passed: nothing was compared"]
        for mode, files in MODES.items():
            outcome = outcomes[mode] = run(mode, files, settings, options.timeout)
            modules = tuple(file.removesuffix(".py").replace("/", ".") for file in files)
            mine = {name for name in outcomes[STOCK].passed if name.startswith(modules)}
            found += problems(mode, mine, outcome)
    except ConformanceError as error:
        print(f"vllm_offload_conformance: {error}", file=sys.stderr)
        return 1
    for mode, outcome in outcomes.items():
        looked = f", {len(PRIVATE[mode])} of them look at private attributes" if mode != STOCK else ""
        print(f"{mode}: {len(outcome.passed)} passed, {len(outcome.failed)} failed{looked}")
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
