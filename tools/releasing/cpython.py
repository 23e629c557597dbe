"""Builds a Python from its source into a root of its own, for wheels that no Python here runs. Nothing is installed.

``musl.py`` and ``free_threaded.py`` say which one, by which compiler, with what configured.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tools.cargo_tools import call, require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def install(
    configure: Path, options: Sequence[str | Path], here: Path, environment: Mapping[str, str], root: Path
) -> None:
    """Configures and builds in ``here``, and installs for /usr below ``root``, which appears whole or not at all."""
    fresh = here / "root"
    same = ["--prefix=/usr", "--without-ensurepip", "--disable-test-modules"]
    run(configure, *options, *same, cwd=here, environment=environment)
    run("make", f"-j{os.cpu_count() or 1}", cwd=here, environment=environment)
    run("make", "install", f"DESTDIR={fresh}", cwd=here, environment=environment)
    shutil.rmtree(root, ignore_errors=True)
    fresh.rename(root)


def run(*command: str | Path, cwd: Path, environment: Mapping[str, str]) -> None:
    """A step of the build; what it says is told if it fails, the end of it."""
    done = call(*command, cwd=cwd, **environment)
    done.stdout = "\n".join(re.sub(r"\s+", " ", line)[:300] for line in done.stdout.splitlines()[-20:])
    require(done, f"{Path(command[0]).name} of a Python that is built for wheels")
