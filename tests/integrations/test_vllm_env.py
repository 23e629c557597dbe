"""Tests tools/vllm_env.py. For ``.ci/run``, exit code 3 means that vLLM is unavailable. So no other
failure may have this code.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

from tools import vllm_env

ROOT = Path(__file__).resolve().parents[2]


def archive_of(folder: Path, files: dict[str, bytes], link: tuple[str, str] | None = None) -> Path:
    path = folder / "sdist.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        if link:
            member = tarfile.TarInfo(link[0])
            member.type, member.linkname = tarfile.SYMTYPE, link[1]
            tar.addfile(member)
    return path


class Recorded(vllm_env.Environment):
    """An environment that records its commands instead of running them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.commands: list[str] = []
        self.fails = ""

    def command(self, *arguments: str | Path, cwd: Path = ROOT, **variables: str) -> None:
        line = " ".join(str(argument) for argument in arguments).replace(f"{self.bin}/", "")
        self.commands.append(line)
        if self.fails and self.fails in line:
            raise vllm_env.StepError("no")
        if "-m venv" in line:
            self.bin.mkdir(parents=True)
            self.python.touch()
            (self.folder / "pyvenv.cfg").touch()
        if "--download-sdist" in line:
            made = archive_of(self.folder, {"vllm/tests/v1/core/test_a.py": b""})
            made.rename(str(arguments[-1]))

    def output(self, *arguments: str | Path) -> str:
        if "sysconfig" in str(arguments[1]):
            (self.folder / "site").mkdir(exist_ok=True)
            return f"{self.folder / 'site'}\n"
        return json.dumps(["numpy", "torchaudio"])


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setenv("CARGO", sys.executable)
    monkeypatch.setattr(vllm_env, "NEEDED_BYTES", 0)  # the test must not depend on the disk of this machine
    monkeypatch.setattr(vllm_env, "PAUSES", (0.0,))
    return Recorded(tmp_path / "venv")


@pytest.mark.parametrize(
    ("fails", "code"), [("torch==", 3), ("--requirement", 3), ("--download-sdist", 3), ("maturin develop", 1)]
)
def test_a_missing_package_has_another_exit_code_than_a_failure(
    environment: Recorded, monkeypatch: pytest.MonkeyPatch, fails: str, code: int
) -> None:
    environment.fails = fails
    monkeypatch.setattr(vllm_env, "Environment", lambda *_: environment)
    assert vllm_env.main([]) == code
    environment.fails = ""
    assert vllm_env.main([]) == 0
