"""tools/vllm_conformance.py over a vLLM of three lines: what it counts, what it compares, what it does not let pass."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tools import vllm_conformance

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
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
    (core / "test_dies.py").write_text("def test_dies():\n    import os\n    os._exit(9)")
    (core / "test_hangs.py").write_text("def test_hangs():\n    import time\n    time.sleep(600)")
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
    # What is installed here is no plug-in of that vLLM's, and takes longer to import than its tests take.
    environment = {"HF_HUB_OFFLINE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    settings = {"python": sys.executable, "tests": str(tests), "environment": environment}
    (tmp_path / "kvpool.json").write_text(json.dumps(settings))
    return tmp_path


@dataclass
class Ended:
    """How the tool ended, what it said, and its report."""

    code: int
    stdout: str
    stderr: str
    report: dict[str, Any]


@pytest.fixture
def run(venv: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """The tool, in this process: the levels that it runs are processes of their own."""

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
    assert "5 / 3 / 1" in done.stdout  # test_teardown passes and then errs, test_cannot cannot be imported
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
    assert done.report["levels"]["same"]["core/test_all.py"]["replaced"] == ["vllm.v1.core.block_pool.BlockPool"]
    assert (venv / "logs" / "same-core-test_all.py.log").is_file()


def test_a_level_that_differs(run: Callable[..., Ended]) -> None:
    done = run("stock", "worse", "--file", "core/test_all.py")
    assert done.code == 1
    (problem,) = done.report["problems"]
    assert problem.splitlines()[0].startswith("worse, core/test_all.py")
    assert [line.strip().rpartition("::")[2] for line in problem.splitlines()[1:]] == ["test_level", "test_new"]
    assert "- tests.v1.core.test_all::test_level" in done.stderr
    assert "+ tests.v1.core.test_all::test_new" in done.stderr


@pytest.mark.parametrize("level", ["stock", "same"])
def test_what_fails_once_beside_a_clock_is_no_difference(
    venv: Path, run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    late = f"""
import os, pathlib

def test_late():
    failed = pathlib.Path(__file__).with_name("failed")
    if os.environ.get("KVPOOL_VLLM", "stock") == {level!r} and not failed.exists():
        failed.touch()
        assert False

def test_other(): pass
"""
    (venv / "vllm-tests" / "tests" / "v1" / "core" / "test_late.py").write_text(late)
    arguments = ("same", "--file", "core/test_late.py")
    assert run(*arguments).code == 1, "no file is known to have a clock"
    (venv / "vllm-tests" / "tests" / "v1" / "core" / "failed").unlink()
    monkeypatch.setattr(vllm_conformance, "AGAINST_THE_CLOCK", frozenset({"core/test_late.py"}))
    monkeypatch.setattr(vllm_conformance, "AGAIN", 2)
    done = run(*arguments)
    assert done.code == 0, done.stderr
    (steady,) = done.report["steady"]
    assert steady == "same, tests.v1.core.test_late::test_late: differed, and passed 2 times at both"
    assert steady in done.stderr


def test_what_fails_each_time_is_a_difference_beside_a_clock_too(
    run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_conformance, "AGAINST_THE_CLOCK", frozenset({"core/test_all.py"}))
    done = run("worse", "--file", "core/test_all.py")
    assert (done.code, done.report["steady"]) == (1, [])
    (problem,) = done.report["problems"]
    assert [line.rpartition("::")[2] for line in problem.splitlines()[1:]] == ["test_level", "test_new"]


def test_what_differs_on_purpose_is_no_difference_unless_it_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_conformance, "ON_PURPOSE", {"pool": {"test_meant": "why"}})
    stock = vllm_conformance.Outcome({"m::test_meant", "m::test_other"})

    def problems(level: str, outcome: vllm_conformance.Outcome) -> list[str]:
        outcome.replaced = ["vllm.X"]
        return vllm_conformance.verdict(["stock", level], {"a": []}, {("stock", "a"): stock, (level, "a"): outcome})

    assert problems("pool", vllm_conformance.Outcome({"m::test_other"}, {"m::test_meant"})) == []
    assert "listed as one that cannot" in problems("pool", vllm_conformance.Outcome(set(stock.passed)))[0]
    # Not even run is a difference, and so is a failure at a level that does the same as stock.
    assert "- m::test_meant" in problems("pool", vllm_conformance.Outcome({"m::test_other"}))[0]
    assert "- m::test_meant" in problems("shadow", vllm_conformance.Outcome({"m::test_other"}, {"m::test_meant"}))[0]


def test_a_level_that_does_nothing_is_no_agreement(run: Callable[..., Ended]) -> None:
    done = run("absent", "--file", "core/prefix_cache/*")
    assert done.code == 1
    assert done.report["problems"] == ["absent: kvpool left vLLM as it is: this compared stock with stock"]


def test_a_folder_is_one_process_without_what_is_named_before_or_left_out(
    venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = venv / "vllm-tests"
    monkeypatch.setattr(vllm_conformance, "LEFT_OUT", frozenset({"core/test_dies.py", "core/test_hangs.py"}))
    found = vllm_conformance.find_files(tests, ["core/test_all.py", "core/*", "core/prefix_cache/*"])
    assert found == {
        "core/test_all.py": ["core/test_all.py"],
        "core/*": ["core/test_cannot.py"],
        "core/prefix_cache/*": ["core/prefix_cache/test_more.py"],
    }
    # Asked for by its name, a file is not left out.
    assert vllm_conformance.find_files(tests, ["core/test_dies.py"]) == {"core/test_dies.py": ["core/test_dies.py"]}


def test_processes_that_die_or_hang_are_problems(run: Callable[..., Ended]) -> None:
    # The one that dies has all the time that it takes: on a busy machine pytest alone needs more than five seconds.
    for arguments, what in (
        (["core/test_dies.py"], "pytest exited with 9"),
        (["core/test_hangs.py", "--timeout", "5"], "still running after 5 s"),
    ):
        done = run("--file", *arguments)
        assert done.code == 1
        problem, nothing = done.report["problems"]
        assert what in problem
        assert nothing == "no test passed: nothing was compared"


def heed_interrupts() -> None:
    """A background job of a shell starts with SIGINT ignored, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("by", ["kill", "tgkill"])
def test_ctrl_c_leaves_no_process(venv: Path, by: str) -> None:
    """Whichever thread the system gives the signal to: the one that heeds it may be waiting for another."""
    mark = venv / "pid"
    hangs = venv / "vllm-tests" / "tests" / "v1" / "core" / "test_hangs.py"
    hangs.write_text(
        "import os, pathlib, time\n"
        f"def test(): pathlib.Path({str(mark)!r}).write_text(str(os.getpid()) + '.'); time.sleep(600)\n"
    )
    command = [sys.executable, str(ROOT / "tools" / "vllm_conformance.py"), "--venv", str(venv)]
    command += [
        "--json",
        str(venv / "report.json"),
        "--file",
        "core/test_hangs.py",
        "--file",
        "core/test_all.py",
        "--jobs",
        "1",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    ) as process:
        deadline = time.monotonic() + 300
        while not (mark.exists() and mark.read_text().endswith(".")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if by == "kill":
            process.send_signal(signal.SIGINT)
        else:
            threads = {int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()} - {process.pid}
            assert ctypes.CDLL(None).tgkill(process.pid, threads.pop(), signal.SIGINT) == 0
        assert "stopped" in process.communicate()[1]
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()[:-1]), 0)


def test_what_is_missing_is_said(venv: Path, run: Callable[..., Ended]) -> None:
    done = run("--file", "core/test_gone.py")
    assert done.code == 1
    assert "vLLM has no tests/v1/core/test_gone.py" in done.stderr
    done = run(venv=venv / "nowhere")
    assert done.code == 1
    assert "run tools/vllm_env.py" in done.stderr
    (venv / "kvpool.json").write_text("{}")
    done = run()
    assert done.code == 1
    assert "not whole" in done.stderr
    with pytest.raises(SystemExit) as refused:
        run("--jobs", "0")
    assert refused.value.code == 2


def test_levels_see_nothing_of_the_callers_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVPOOL_VLLM", "pool")
    monkeypatch.setenv("VLLM_PLUGINS", "")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-x")
    settings = {"tests": "t", "environment": {"HF_HOME": "h"}}
    stock = vllm_conformance.child_environment("stock", settings, tmp_path)
    assert not {"KVPOOL_VLLM", "VLLM_PLUGINS", "PYTEST_ADDOPTS"} & set(stock)
    assert stock["HF_HOME"] == "h"
    assert vllm_conformance.child_environment("manager", settings, tmp_path)["KVPOOL_VLLM"] == "manager"
