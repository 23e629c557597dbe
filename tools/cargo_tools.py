"""What tools that check have in common: how a check ends, how a command is run, and programs that cargo installs.

A check returns what it found, raises :class:`CheckFailedError`, or :class:`SkippedError` where its one reason not to be
made holds. A skip is said in capitals, and is never silent.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROOT: Final = Path(__file__).resolve().parents[1]
#: A checker runs for seconds: no time is spent on making it fast.
QUICK_BUILD: Final = {
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
    "CARGO_PROFILE_RELEASE_DEBUG": "0",
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1",
}


class CheckFailedError(Exception):
    """A check found something, or could not be made. The message says what, or names what has said it."""


class SkippedError(Exception):
    """A check could not be made, for the one reason that is none to fail. The message says which."""


def call(*command: str | Path, cwd: str | Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command, in the root of the checkout unless told otherwise, and keeps what it says."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def require(done: subprocess.CompletedProcess[str], what: str) -> str:
    """The output of a command that has to succeed."""
    if done.returncode != 0:
        raise CheckFailedError(f"{what}, exit status {done.returncode}:\n{done.stdout.rstrip()}")
    return done.stdout


def cargo() -> str:
    """The cargo of this run."""
    return os.environ.get("CARGO", "cargo")


def cargo_home() -> Path:
    """Where cargo keeps what it has fetched."""
    return Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")


def is_wanted(program: Path, name: str, version: str) -> bool:
    """Whether a program is there and is the version that is wanted."""
    if not os.access(program, os.X_OK):
        return False
    return call(program, "--version").stdout.split()[:2] == [name, version]


def find_cargo_tool(name: str, version: str, tools: Path) -> Path:
    """A program of the wanted version, from ``tools`` or the PATH; installed into ``tools`` if need be."""
    for known in (tools / "bin" / name, Path(shutil.which(name) or os.devnull)):
        if is_wanted(known, name, version):
            return known
    print(f"{name} {version}: installing it into {tools}, once, for minutes", flush=True)
    wanted = ("--version", f"={version}", "--root", str(tools), "--force", "--quiet")
    require(call(cargo(), "install", "--locked", name, *wanted, **QUICK_BUILD), f"cargo install {name}")
    return tools / "bin" / name


def run_checks(checks: Iterable[tuple[str, Callable[[], str]]]) -> tuple[bool, bool]:
    """Makes each check, whatever became of the others, and says what came of it: whether one failed, or was skipped."""
    failed = skipped = False
    for name, check in checks:
        try:
            print(f"{name}: {check()}", flush=True)
        except CheckFailedError as error:
            failed = True
            print(f"{name}: FAILED: {error}", file=sys.stderr, flush=True)
        except SkippedError as error:
            skipped = True
            print(f"{name}: SKIPPED, NOT CHECKED: {error}", file=sys.stderr, flush=True)
    return failed, skipped
