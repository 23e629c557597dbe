"""Runs the command line for tests, in a separate process or in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from kvpool.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

#: The environment of the commands, without variables that make programs colour or widen their output.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in {"FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "COLUMNS", "TERMINAL_WIDTH"}
}


def run(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "kvpool", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, env=ENVIRONMENT, check=False)


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """Runs a command with ``--json`` in this process and returns its output. The command has to succeed
    and print nothing but the JSON.
    """
    code = main([str(argument) for argument in arguments] + ["--json"])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    parsed = json.loads(captured.out)
    assert isinstance(parsed, dict)
    return parsed
