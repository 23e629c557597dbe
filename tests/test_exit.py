"""If a process ends while a daemon thread runs Python code for a call, the process ends with exit code
0.

Before 3.14, CPython ends such a thread when it requests the interpreter. ``make test-exit`` runs each
program 50 times.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import leaving

RUNS = int(os.environ.get("KVPOOL_EXIT_RUNS", "2"))


@pytest.mark.parametrize("program", leaving.PROGRAMS)
def test_a_callback_in_a_daemon_thread_ends_no_process_early(program: str) -> None:
    command = [sys.executable, "-W", "ignore", leaving.__file__, program]
    for run in range(RUNS):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stderr) == (0, ""), f"run {run}: {done}"
