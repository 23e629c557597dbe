"""tools/sglang_hicache_check.py without the network: an SGLang that cannot be had is said, and fails with CI set."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from tools import sglang_hicache_check as tool


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(tool, "NEEDED_BYTES", 0)  # the disk of the machine that tests is not what is tested


def planted(monkeypatch: pytest.MonkeyPatch, fails: str = "") -> list[str]:
    """Commands are written down, not run; the one with these words fails."""
    commands: list[str] = []

    def run(*command: object) -> None:
        line = " ".join(map(str, command))
        commands.append(line)
        if fails and fails in line:
            raise tool.UnavailableError("no such package")
        if "-m venv" in line:
            made = line.split()[-1]
            Path(made).mkdir()
            (Path(made) / "pyvenv.cfg").touch()

    monkeypatch.setattr(tool, "run", run)
    return commands


def test_the_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = planted(monkeypatch)
    folder = tmp_path / "venv"
    for _ in range(2):
        assert tool.make(folder) == folder / "bin" / "python"
    assert [f"sglang=={tool.SGLANG}" in line for line in commands] == [False, False, True]
    assert "--no-deps" in commands[2]
    assert any("torch==" in line for line in commands)
    monkeypatch.setattr(tool, "STAMP", "another")
    tool.make(folder)
    assert len(commands) == 6


@pytest.mark.parametrize("fails", ["-m venv", "torch==", "sglang=="])
@pytest.mark.parametrize(("ci", "code"), [("", 0), ("1", 1)])
def test_an_sglang_that_cannot_be_had_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fails: str,
    ci: str,
    code: int,
) -> None:
    commands = planted(monkeypatch, fails)
    monkeypatch.setenv("CI", ci)
    assert tool.main(["--venv", str(tmp_path / "venv")]) == code
    said = capsys.readouterr().err
    assert "no such package" in said
    assert said.endswith("NOT CHECKED: kvpool beneath a real SGLang\n")
    assert not (tmp_path / "venv" / "kvpool-stamp").exists()
    tried = len(commands)
    assert tool.main(["--venv", str(tmp_path / "venv")]) == code, "and tried again"
    assert len(commands) == 2 * tried


def test_a_disk_that_is_too_small_is_said_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = planted(monkeypatch)
    monkeypatch.setattr(tool, "NEEDED_BYTES", 10**18)
    with pytest.raises(tool.UnavailableError, match="GB free of 1000000000 needed"):
        tool.make(tmp_path / "venv")
    assert commands == []


def test_a_folder_that_is_something_else_is_kept(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("mine")
    with pytest.raises(tool.UnavailableError, match="no virtual environment"):
        tool.make(tmp_path)
    assert (tmp_path / "work").read_text() == "mine"


def test_commands_that_fail_show_their_last_lines(tmp_path: Path) -> None:
    with pytest.raises(tool.UnavailableError, match=r"(?s)exited with 3.*what went wrong"):
        tool.run(sys.executable, "-c", "print('what went wrong'); raise SystemExit(3)")
    with pytest.raises(tool.UnavailableError, match="cannot run"):
        tool.run(tmp_path / "nothing")


@pytest.mark.parametrize(("found", "code"), [(0, 0), (1, 1), (-11, 1)])
def test_what_the_check_finds_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: int, code: int
) -> None:
    asked: list[Path] = []

    def check(python: Path) -> int:
        asked.append(python)
        return found

    monkeypatch.setattr(tool, "check", check)
    assert tool.main(["--python", str(tmp_path / "python")]) == code
    assert asked == [tmp_path / "python"]
    with pytest.raises(SystemExit):
        tool.main(["--unknown"])


@pytest.mark.parametrize(("codes", "found"), [([0, 0], 0), ([0, 1], 1), ([-11], -11)])
def test_every_check_runs_offline_until_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: list[int], found: int
) -> None:
    ran: list[str] = []

    def run(command: list[object], *, cwd: Path, env: dict[str, str], check: bool) -> object:
        assert (cwd, check) == (tool.ROOT, False)
        assert env["HF_HUB_OFFLINE"] == "1"
        assert Path(env["HF_HUB_CACHE"]).is_dir()
        assert not any(name.startswith(("SGLANG_", "KVPOOL_")) for name in env)
        ran.append(str(command[-1]))
        return types.SimpleNamespace(returncode=codes[len(ran) - 1])

    monkeypatch.setenv("SGLANG_RUN_ID", "1")
    monkeypatch.setattr(subprocess, "run", run)
    assert tool.check(tmp_path / "python") == found
    assert ran == list(tool.CHECKS[: len(codes)])
