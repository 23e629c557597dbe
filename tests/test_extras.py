"""``pip install kvpool`` installs no other package, and ``kvpool[cli]`` installs the packages of the
command line.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kvpool

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(kvpool.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Packages that the command line needs.
NEEDED = {"rich", "typer"}


def without(*packages: str, code: str) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` in a separate process in which these packages cannot be imported. Returns its
    output.
    """
    hidden = "".join(f"sys.modules[{package!r}] = None\n" for package in packages)
    command = [sys.executable, "-c", f"import sys\n{hidden}{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


RUN = "sys.argv = ['kvpool', '--version']\nfrom kvpool.__main__ import main\nsys.exit(main())"


def imported(path: Path) -> set[str]:
    """Returns the packages that a file imports, including imports in functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def test_nothing_is_required_and_the_extra_has_what_the_command_line_needs() -> None:
    assert PROJECT["dependencies"] == []
    names = {re.split(r"[^A-Za-z0-9-]", one)[0] for one in PROJECT["optional-dependencies"]["cli"]}
    assert names == NEEDED
    assert PROJECT["scripts"] == {"kvpool": "kvpool.__main__:main"}


def test_only_the_command_line_needs_packages() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    users = {path for path in files if imported(path) & NEEDED}
    assert len(users) > 5
    outside = {path for path in users if (PACKAGE / "cli") not in path.parents}
    assert not outside
    assert imported(PACKAGE / "__main__.py") <= {"__future__", "sys", "kvpool"}


@pytest.mark.parametrize("missing", [("typer",), ("rich",), ("typer", "rich")], ids=" ".join)
def test_without_them_the_command_says_how_to_install_them(missing: tuple[str, ...]) -> None:
    done = without(*missing, code=RUN)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(r"error: the command line needs (typer|rich): pip install 'kvpool\[cli\]'", line)


def test_with_them_it_runs() -> None:
    done = without(code=RUN)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"kvpool {kvpool.__version__}\n", "")


def test_a_defect_of_ours_is_not_taken_for_a_missing_package() -> None:
    done = without("kvpool.cli.problems", code=RUN)
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
    assert "kvpool[cli]" not in done.stderr


def test_a_scheduler_and_the_plug_in_need_neither() -> None:
    code = """
import kvpool, kvpool.sizing, kvpool.journal, kvpool.store, kvpool.traces, kvpool.transfer, \
kvpool.integrations.vllm
manager = kvpool.CacheManager(num_blocks=16, block_size=4)
assert manager.admit("a", range(10)).cached_tokens == 0
kvpool.integrations.vllm.register()
assert kvpool.sizing.size(kvpool.traces.Trace.generate(20)) is not None
"""
    done = without(*sorted(NEEDED), code=code)
    assert (done.returncode, done.stderr) == (0, "")
