"""A Python over musl for wheels that no container runs: what it is built from, and what is said where it cannot be."""

from __future__ import annotations

import platform
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.cargo_tools import CheckFailedError
from tools.releasing import cpython, debian, musl, running, targets
from tools.releasing.targets import TARGETS, MissingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@pytest.mark.parametrize(
    ("binary", "source"),
    [
        ("Types: deb\nURIs: x\n", "Types: deb-src\nURIs: x\n"),
        ("Types: deb deb-src\nSuites: y", "Types: deb-src\nSuites: y"),
        ("# deb x\ndeb x y main\n", "# deb x\ndeb-src x y main\n"),
        ("deb-src x y main\n", "deb-src x y main\n"),
    ],
)
def test_lists_of_packages_become_those_of_their_sources(binary: str, source: str) -> None:
    assert debian.of_sources(binary) == source


def test_sources_are_unpacked_once_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def apt(folder: Path, options: Sequence[str], words: Sequence[str]) -> None:
        calls.append(words[0])
        assert f"Dir::Etc::SourceParts={folder / 'parts'}" in options
        if words[0] == "source":
            (folder / "Python-1").mkdir()
            (folder / "Python-1" / "configure").write_text("#!/bin/sh\n")
            with tarfile.open(folder / "python_1.orig.tar.gz", "w:gz") as files:
                files.add(folder / "Python-1", "Python-1")
            (folder / "python_1.orig.tar.gz.asc").write_text("signature")

    monkeypatch.setattr(debian, "apt", apt)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    for _ in range(2):
        found = debian.fetch_source("python3.11", tmp_path / "sources")
        assert (found / "configure").read_text() == "#!/bin/sh\n"
    assert calls == ["update", "source"]

    def fails(*_: object) -> None:
        raise MissingError("apt-get update: no network")

    monkeypatch.setattr(debian, "apt", fails)
    with pytest.raises(MissingError, match="no network"):
        debian.fetch_source("other", tmp_path / "sources")
    assert [path.name for path in (tmp_path / "sources").iterdir()] == ["python3.11"]
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(MissingError, match="no apt to fetch the source of other"):
        debian.fetch_source("other", tmp_path / "sources")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that a build takes, made up."""
    for name in ("make", "readelf", "python3.11"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    monkeypatch.setattr("shutil.which", lambda name: str(tmp_path / name) if (tmp_path / name).exists() else None)
    monkeypatch.setattr("sys.base_prefix", str(tmp_path / "nowhere"))
    monkeypatch.setattr(musl, "has_zig", lambda: True)
    for name in ("python3.11", "zlib"):
        source = tmp_path / "sources" / name
        source.mkdir(parents=True)
        (source / "configure").write_text("  x86_64-linux-gnu\n  aarch64-linux-gnu\n  arm-linux-gnu\n")
    monkeypatch.setattr(musl, "fetch_source", lambda name, folder: folder / name)
    return tmp_path


def test_a_python_is_built_once_whole_or_not_at_all(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    broken = True

    def run(*command: str | Path, cwd: Path, environment: Mapping[str, str]) -> None:
        words = [str(word) for word in command]
        ran.append(words)
        if "CONFIG_SITE" in environment:
            assert "ac_cv_func_preadv2=no" in Path(environment["CONFIG_SITE"]).read_text()
            assert environment["ZLIB_LIBS"] == f"-L{cwd / 'zlib'} -lz"
        if words[0] == str(cwd / "configure") and cwd.name != "zlib":
            named = (cwd / "configure").read_text()
            assert named == "  x86_64-linux-gnu\n  aarch64-linux-musl\n  arm-linux-gnu\n"
        compiler = Path(environment["CC"])
        assert compiler.stat().st_mode & stat.S_IXUSR
        assert "-m ziglang cc -target aarch64-linux-musl -dynamic" in compiler.read_text()
        assert "-target" not in Path(environment["AR"]).read_text()
        if "install" in words:
            program = Path(words[2].removeprefix("DESTDIR="), "usr/bin/python3.11")
            program.parent.mkdir(parents=True)
            program.touch()
            if broken:
                raise CheckFailedError("make of Python over musl")

    monkeypatch.setattr(cpython, "run", run)
    with pytest.raises(CheckFailedError):
        musl.python("aarch64", tools)
    assert not (tools / "python-musl-aarch64").exists()
    broken = False
    for _ in range(2):
        program = musl.python("aarch64", tools)
        assert program == tools / "python-musl-aarch64/usr/bin/python3.11"
        assert program.exists()
    # zlib and Python, twice: of each configure and make, of Python its installation.
    assert len(ran) == 2 * (2 + 3)
    configure = ran[2]
    assert f"--srcdir={tools / 'sources' / 'python3.11'}" in configure
    assert "--host=aarch64-linux-musl" in configure
    assert f"--with-build-python={tools / 'python3.11'}" in configure


@pytest.mark.parametrize("gone", ["make", "readelf", "python3.11", "zig"])
def test_what_a_build_takes_and_is_not_here_is_a_reason(
    tools: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    if gone == "zig":
        monkeypatch.setattr(musl, "has_zig", lambda: False)
    else:
        (tools / gone).unlink()
    with pytest.raises(MissingError, match="no Python over musl: building one takes"):
        musl.python("x86_64", tools)


@pytest.mark.parametrize("target", [target for target in TARGETS.values() if target.is_musl], ids=lambda one: one.name)
def test_a_wheel_for_musl_runs_in_a_container_of_its_machine_or_in_that_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: targets.Target
) -> None:
    given: list[tuple[object, ...]] = []

    def unpacked(_: Path, python: tuple[str | Path, ...], platforms: list[str], variables: object) -> tuple[str, float]:
        given.append((python, variables))
        assert all(one.startswith("musllinux_1_") and one.endswith(target.machine) for one in platforms)
        return "3.11.2", 1.0

    monkeypatch.setattr(running, "run_unpacked", unpacked)
    monkeypatch.setattr(running, "run_in_container", lambda *_: "in a container")
    monkeypatch.setattr(running, "emulator", lambda *_: (Path("qemu"), Path("root")))
    monkeypatch.setattr(musl, "python", lambda *_: Path("/x/usr/bin/python3.11"))
    monkeypatch.setattr(musl, "loader", lambda *_: Path("/musl/lib/ld-musl.so.1"))
    native = target.machine == platform.machine()
    monkeypatch.setattr(running, "call_quietly", lambda *_: True)
    said = running.run_musl(tmp_path, target, tmp_path)
    assert (said == "in a container") == native
    given.clear()
    monkeypatch.setattr(running, "call_quietly", lambda *_: False)
    said = running.run_musl(tmp_path, target, tmp_path)
    assert said.startswith(f"Python 3.11.2 on {target.machine} over musl")
    assert ("under qemu-user" in said) != native
    loader, root, program = Path("/musl/lib/ld-musl.so.1"), Path("/musl"), Path("/x/usr/bin/python3.11")
    command = (loader, program) if native else (Path("qemu"), "-L", root, program)
    assert given == [(command, {"PYTHONHOME": "/x/usr"})]


def test_a_compiler_does_without_what_is_of_this_machine(tmp_path: Path) -> None:
    script = tmp_path / "cc"
    script.write_text(musl._SCRIPT.format(line="printf '%s\\n' -target x"))
    kept = ["-I/usr/src/kvpool/Include", "-I.", "-DA=b c", "-Lbuild", "", "-lm"]
    gone = ["-I/usr/include", "-I/usr/include/x86_64-linux-gnu", "-I/usr/local/include", "-L/usr/lib", "-L/lib/x"]
    words = [word for pair in zip(kept, [*gone, "-c"], strict=True) for word in pair]
    done = subprocess.run(["sh", str(script), *words], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["-target", "x", *kept, "-c", ""]
