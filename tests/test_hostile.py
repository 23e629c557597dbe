"""Tests arguments that report a wrong size. Under a memory limit, each call raises a typed error, and
none ends the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import hostile

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit needs Linux")

# Arguments that are never read completely. A row is read only up to three items, a wrong object is
# refused because it does not describe a tensor, and a batch consists of bytes.
WHOLLY_READ_NEVER = (
    "pass_on",
    "submit, row",
    "from_tensors, shape",
    "from_tensors, strides",
    "CacheManager.append (batch).multimodal",  # refused unread: items belong to one request
)


def outcomes() -> dict[int, str]:
    """Returns the outcome of each case. If a call ends the process, a new process continues with the
    next case.
    """
    found: dict[int, str] = {}
    while len(found) < len(hostile.CASES):
        run = [sys.executable, "-W", "ignore", "-m", "tests.hostile", str(len(found))]
        done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
        for line in done.stdout.splitlines():
            number, outcome = json.loads(line)
            found[number] = outcome or f"ended the process with {done.returncode}: {done.stderr[-500:]}"
        assert done.stdout, done.stderr
    return found


def is_refused(case: tuple[str, str, str], outcome: str) -> bool:
    what, entry, kind = case
    theirs = entry.startswith(("vllm", "Vllm"))  # it raises what vLLM's classes would raise
    if outcome.startswith("ended the process") or "PanicException" in outcome:
        return False
    if kind == "endless" and entry not in WHOLLY_READ_NEVER and not theirs:
        return "TooLargeError" in outcome
    if outcome == "done":
        # These calls may succeed although an argument reports a wrong size. A list may have two valid items
        # and report a wrong number, a count may only be an upper limit, and a lookup may have no hashes.
        return what == "count" or "liar" in kind or theirs
    return theirs or "KvpoolError" in outcome


def test_every_hostile_argument_is_refused() -> None:
    # All calls are in one test, so that only one process of pytest makes them.
    found = outcomes()
    cases = {"-".join(case): (case, found[number]) for number, case in enumerate(hostile.CASES)}
    assert len(cases) == len(hostile.CASES) > 1000
    assert {name: outcome for name, (case, outcome) in cases.items() if not is_refused(case, outcome)} == {}
