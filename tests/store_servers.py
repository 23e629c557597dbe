"""Servers for the tests of stores, which start and stop them on this machine. Each test has its own
server.

If a server is unavailable, its tests are skipped with the reason. With ``CI`` set, this is a failure.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds after which a wait fails. It is far longer than any machine needs.
AGES = 120.0


def cannot_be_had(why: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(f"NOT TESTED: {why}")


def binary(*names: str) -> str:
    """Returns the path of a program, from the folder of this interpreter or from the search path."""
    beside = Path(sys.executable).parent
    for name in names:
        for path in (str(beside / name), shutil.which(name)):
            if path is not None and os.access(path, os.X_OK):
                return path
    cannot_be_had(f"there is no {' and no '.join(names)}")


@contextlib.contextmanager
def running(command: list[str], answers: object, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process, and yields it as soon as it answers. Ends it at the end of the context."""
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process,
    ):
        try:
            end = time.monotonic() + AGES
            while not answers():  # type: ignore[operator]
                if process.poll() is not None or time.monotonic() > end:
                    said = (folder / "log").read_text(errors="replace")[-2000:]
                    raise AssertionError(
                        f"{command[0]} does not answer, and ended with {process.poll()}: {said}"
                    )
            yield process
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def connects(address: str | tuple[str, int]) -> bool:
    kind = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(kind) as probe:
        return probe.connect_ex(address) == 0


@contextlib.contextmanager
def redis_server(folder: Path, *settings: str) -> Iterator[Path]:
    """Runs a Redis server, and yields the path of its socket."""
    path = folder / "redis"
    command = [
        binary("redis-server", "valkey-server"),
        "--port",
        "0",
        "--save",
        "",
        "--unixsocket",
        str(path),
    ]
    with running([*command, *settings], lambda: connects(str(path)), folder):
        yield path
