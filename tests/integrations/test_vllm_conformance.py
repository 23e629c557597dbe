"""Runs tools/vllm_conformance.py with a made-up vLLM of three lines. Some levels agree with it, some
differ, and some change nothing.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tools import vllm_conformance

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PLUGIN = """
import os

def load_general_plugins():
    level = os.environ.get("KVPOOL_VLLM", "")
    if level in ("same", "worse"):
        import vllm.v1.core.block_pool as module
        module.BlockPool = type("BlockPool", (), {"__module__": "kvpool.integrations.vllm", "level": level})
"""
TESTS = """
import pytest
from vllm.v1.core.block_pool import BlockPool

@pytest.mark.parametrize("n", [1, 2])
def test_passes(n): pass

def test_level(): assert BlockPool.level != "worse"

def test_new(): assert BlockPool.level == "worse"

def test_skipped(): pytest.skip("no GPU")

def test_log(caplog_vllm):
    import logging
    logging.getLogger("vllm.x").info("seen")
    assert caplog_vllm.messages == ["seen"]

@pytest.fixture
def broken():
    yield
    assert False

def test_teardown(broken): pass
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    tests = tmp_path / "vllm-tests"
    core = tests / "tests" / "v1" / "core"
    (core / "prefix_cache").mkdir(parents=True)
    (core / "test_all.py").write_text(TESTS)
    (core / "test_cannot.py").write_text("import nothing_of_that_name")
    (core / "prefix_cache" / "test_more.py").write_text("def test_more(): pass")
    (tests / "vllm").mkdir()
    (tests / "vllm" / "__init__.py").touch()
    (tests / "vllm" / "plugins.py").write_text(PLUGIN)
    for name in ("v1", "v1/core", "v1/core/sched", "v1/engine"):
        (tests / "vllm" / name).mkdir()
        (tests / "vllm" / name / "__init__.py").touch()
    for name in (
        "core/kv_cache_utils",
        "core/kv_cache_manager",
        "core/kv_cache_coordinator",
        "core/single_type_kv_cache_manager",
        "core/sched/scheduler",
        "engine/core",
    ):
        (tests / "vllm" / "v1" / f"{name}.py").touch()
    (tests / "vllm" / "v1" / "core" / "block_pool.py").write_text("class BlockPool:\n    level = ''\n")
    # Disable other plug-ins of pytest. They do not belong to the made-up vLLM, and importing them takes
    # longer than its tests.
    environment = {"HF_HUB_OFFLINE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    settings = {"python": sys.executable, "tests": str(tests), "environment": environment}
    (tmp_path / "kvpool.json").write_text(json.dumps(settings))
    return tmp_path


@dataclass
class Ended:
    code: int
    stdout: str
    stderr: str
    report: dict[str, Any]


@pytest.fixture
def run(venv: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs the tool in this process. The tool starts processes of its own."""

    def run(*arguments: str | Path, venv: Path = venv) -> Ended:
        report = venv / "report.json"
        code = vllm_conformance.main(["--venv", str(venv), "--json", str(report), *map(str, arguments)])
        said = capsys.readouterr()
        return Ended(code, said.out, said.err, json.loads(report.read_text()) if report.exists() else {})

    return run


def test_a_level_that_agrees(venv: Path, run: Callable[..., Ended]) -> None:
    files = ("--file", "core/test_all.py", "--file", "core/prefix_cache/*", "--file", "core/test_cannot.py")
    done = run("same", *files, "--logs", venv / "logs")
    assert done.code == 0, done.stderr
    assert "every level passes exactly the tests that stock passes" in done.stderr
    assert "5 / 3 / 1" in done.stdout  # test_teardown passes, then fails; test_cannot is not importable
    assert list(done.report["levels"]) == ["stock", "same"]
    for level in done.report["levels"].values():
        assert list(level) == ["core/test_all.py", "core/prefix_cache/*", "core/test_cannot.py"]
        assert [name.rpartition("::")[2] for name in level["core/test_all.py"]["passed"]] == [
            "test_level",
            "test_log",
            "test_passes[1]",
            "test_passes[2]",
        ]
        assert len(level["core/test_cannot.py"]["failed"]) == 1
    assert done.report["levels"]["stock"]["core/test_all.py"]["replaced"] == []
    assert done.report["levels"]["same"]["core/test_all.py"]["replaced"] == [
        "vllm.v1.core.block_pool.BlockPool"
    ]
    assert (venv / "logs" / "same-core-test_all.py.log").is_file()


def test_a_level_that_differs(run: Callable[..., Ended]) -> None:
    done = run("stock", "worse", "--file", "core/test_all.py")
    assert done.code == 1
    (problem,) = done.report["problems"]
    assert problem.splitlines()[0].startswith("worse, core/test_all.py")
    assert [line.strip().rpartition("::")[2] for line in problem.splitlines()[1:]] == [
        "test_level",
        "test_new",
    ]
    assert "- tests.v1.core.test_all::test_level" in done.stderr
    assert "+ tests.v1.core.test_all::test_new" in done.stderr


def test_a_level_that_does_nothing_is_no_agreement(run: Callable[..., Ended]) -> None:
    done = run("absent", "--file", "core/prefix_cache/*")
    assert done.code == 1
    assert done.report["problems"] == ["absent: kvpool left vLLM as it is: this compared stock with stock"]
