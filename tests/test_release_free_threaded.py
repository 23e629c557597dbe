"""A free-threaded Python for the wheels of it: what it is built from, and what is said where it cannot be."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.cargo_tools import CheckFailedError
from tools.releasing import cpython, debian, free_threaded, running
from tools.releasing.targets import TARGETS, MissingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TARGET = TARGETS["x86_64-gnu-cp314t"]


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        (
            "Types: deb-src\n# a note\nURIs: x\nSuites: stable stable-updates\nComponents: main\n\n"
            "Types: deb-src\nURIs: y\nSuites: stable-security\nComponents: main\n",
            "Types: deb-src\nURIs: x\nSuites: sid\nComponents: main\n\n",
        ),
        (
            "# mine\ndeb-src [signed-by=/k] x stable main\ndeb-src [signed-by=/k] x stable-updates main\n"
            "deb-src y stable-security main\ndeb-src y old/updates main\n",
            "deb-src [signed-by=/k] x sid main\n",
        ),
        ("", "\n"),
    ],
)
def test_lists_of_packages_become_those_of_another_suite(ours: str, other: str) -> None:
    assert debian.of_suite(ours, "sid") == other


def test_an_archive_that_is_not_what_was_pinned_is_refused_and_a_newer_one_is_the_index_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = tmp_path / "debian.sources"
    lists.write_text("Types: deb\nURIs: x\nSuites: stable\n")
    monkeypatch.setattr(debian, "_LISTS", (lists,))
    made = tmp_path / "made.tar.gz"
    (tmp_path / "Python-1").mkdir()
    with tarfile.open(made, "w:gz") as files:
        files.add(tmp_path / "Python-1", "Python-1")

    def apt(folder: Path, _: object, words: Sequence[str]) -> None:
        assert (folder / "parts/debian.sources").read_text() == "Types: deb-src\nURIs: x\nSuites: sid\n\n"
        if words[0] == "source":
            (folder / "python_1.orig.tar.gz").write_bytes(made.read_bytes())

    monkeypatch.setattr(debian, "apt", apt)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    folder = tmp_path / "sources"
    with pytest.raises(CheckFailedError, match=r"python_1\.orig\.tar\.gz has the SHA-256 [0-9a-f]{64}, not 00"):
        debian.fetch_source("python", folder, "sid", {"python_1.orig.tar.gz": "00"})
    assert not folder.exists()
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    assert debian.fetch_source("python", folder, "sid", {"python_1.orig.tar.gz": digest}).is_dir()
    assert debian.fetch_source("newer", folder, "sid", {"python_0.orig.tar.gz": "00"}).is_dir()


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that a build takes, made up."""
    for name in ("cc", "make", "openssl/ssl.h", "zlib.h"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0 if (tmp_path / words[3]).exists() else 1, "")

    monkeypatch.setattr("shutil.which", lambda name: str(tmp_path / name) if (tmp_path / name).exists() else None)
    monkeypatch.setattr(free_threaded, "call", call)
    monkeypatch.setattr(free_threaded, "fetch_source", lambda name, folder, *_: folder / name)
    return tmp_path


def test_it_is_built_once_whole_or_not_at_all_and_runs_the_wheel(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    broken = True

    def run(*command: str | Path, cwd: Path, environment: Mapping[str, str]) -> None:
        assert environment == {"CFLAGS": "-O1 -g0"}
        words = [str(word) for word in command]
        ran.append(words)
        if "install" in words:
            program = Path(words[2].removeprefix("DESTDIR="), "usr/bin/python3.14t")
            assert program.is_relative_to(cwd)
            program.parent.mkdir(parents=True)
            program.touch()
            if broken:
                raise CheckFailedError("make")

    monkeypatch.setattr(cpython, "run", run)
    monkeypatch.setattr(running, "run_installed", lambda _, python: f"ran with {python}")
    with pytest.raises(CheckFailedError):
        running.run_native(tools / "x.whl", TARGET, [], tools)
    assert not (tools / "python-free-threaded").exists()
    broken = False
    for _ in range(2):
        said = running.run_native(tools / "x.whl", TARGET, [], tools)
        assert said == [f"ran with {tools / 'python-free-threaded/usr/bin/python3.14t'}"]
    # Configured, made and installed, twice: not a third time.
    assert len(ran) == 2 * 3
    assert ran[0][0] == str(tools / "sources/python3.14/configure")
    assert "--disable-gil" in ran[0]


@pytest.mark.parametrize("gone", ["cc", "make", "openssl/ssl.h", "zlib.h"])
def test_what_a_build_takes_and_is_not_here_is_a_reason(tools: Path, gone: str) -> None:
    (tools / gone).unlink()
    with pytest.raises(MissingError, match=rf"no python3\.14t is here, and building one takes .*{gone}"):
        free_threaded.python(tools)


def test_a_source_that_no_mirror_has_is_a_reason(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_: object) -> Path:
        raise MissingError("apt-get source: 404 Not Found")

    monkeypatch.setattr(free_threaded, "fetch_source", fetch)
    with pytest.raises(MissingError, match=r"no python3\.14t is here, nor the source to build one: .* 404 Not Found"):
        free_threaded.python(tools)
