"""What lies about its size: under a memory limit, each call ends with a typed error, never with the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import hostile

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit needs Linux")

# Of a row three items are looked at, what describes no tensor is no tensor, and a batch is bytes.
WHOLLY_READ_NEVER = ("pass_on", "submit, row", "from_tensors, shape", "from_tensors, strides")


@pytest.fixture(scope="module")
def outcomes() -> dict[int, str]:
    """The outcome of each case. When a call ends the process, the next process continues with the next case."""
    found: dict[int, str] = {}
    while len(found) < len(hostile.CASES):
        run = [sys.executable, "-W", "ignore", "-m", "tests.hostile", str(len(found))]
        done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
        for line in done.stdout.splitlines():
            number, outcome = json.loads(line)
            found[number] = outcome or f"ended the process with {done.returncode}: {done.stderr[-500:]}"
        assert done.stdout, done.stderr
    return found


@pytest.mark.parametrize("number", range(len(hostile.CASES)), ids=["-".join(case) for case in hostile.CASES])
def test_it_is_refused(number: int, outcomes: dict[int, str]) -> None:
    what, entry, kind = hostile.CASES[number]
    outcome = outcomes[number]
    assert not outcome.startswith("ended the process"), outcome
    assert "PanicException" not in outcome
    theirs = entry.startswith(("vllm", "Vllm"))  # which raises what vLLM's classes would
    if outcome == "done":
        # Two items that suit, whatever their number is said to be; a count that is only a limit; a lookup of nothing.
        assert what == "count" or "liar" in kind or theirs
    else:
        assert theirs or "KvpoolError" in outcome, outcome
    if kind == "endless" and entry not in WHOLLY_READ_NEVER and not theirs:
        assert "TooLargeError" in outcome, outcome
