"""What is shipped: one wheel for every Python, torch and CUDA, which links to none of them."""

from __future__ import annotations

import fcntl
import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
#: What every Linux has: the C library and its parts, the loader, the compiler's runtime.
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libgcc_s.so.1"}


# As shipped it takes minutes to link; what is looked at here is the same in the build that tests install.
AS_TESTED = ["--profile", "dev", "--features", "as-tested"]
RELEASE = ["--release"]


def build_once(out: Path, lock: Path, build: Callable[[Path], None]) -> Path:
    """The wheel in ``out``, built if there is none.

    Workers share it: maturin moves what it has linked away from where all of its runs link, so of two at once one finds
    it gone.
    """
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not list(out.glob("*.whl")):
            build(out)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module", params=[AS_TESTED, pytest.param(RELEASE, marks=pytest.mark.slow)], ids=" ".join)
def wheel(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    arguments: list[str] = request.param

    def build(out: Path) -> None:
        command = [sys.executable, "-m", "maturin", "build", *arguments, "--locked", "--quiet", "--out", str(out)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    (ROOT / "target").mkdir(exist_ok=True)
    return build_once(shared / "-".join(["wheel", *arguments]), ROOT / "target" / "wheel.lock", build)


def test_workers_build_a_wheel_once_and_one_at_a_time(tmp_path: Path) -> None:
    lock, built = tmp_path / "lock", []

    def build(out: Path) -> None:
        with lock.open("w") as another, pytest.raises(BlockingIOError):
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
        out.mkdir()
        (out / "kvpool.whl").touch()
        built.append(out)

    wheels = [build_once(tmp_path / "out", lock, build) for _ in range(2)]
    assert (wheels, len(built)) == ([tmp_path / "out" / "kvpool.whl"] * 2, 1)


def test_one_wheel_serves_every_python(wheel: Path) -> None:
    assert "-abi3-" in wheel.name


def test_the_extension_links_to_the_system_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        extensions = [name for name in files.namelist() if name.endswith(".so")]
        assert extensions == ["kvpool/_core.abi3.so"]
        elf = ELFFile(io.BytesIO(files.read(extensions[0])))
    dynamic = elf.get_section_by_name(".dynamic")
    assert isinstance(dynamic, DynamicSection)
    needed = {str(vars(tag)["needed"]) for tag in dynamic.iter_tags("DT_NEEDED")}
    assert {name for name in needed if not name.startswith("ld-linux")} <= SYSTEM
    assert not list(dynamic.iter_tags("DT_RPATH"))
    assert not list(dynamic.iter_tags("DT_RUNPATH"))


def test_the_kernels_are_inside(wheel: Path) -> None:
    fatbin = (ROOT / "cuda" / "block_copy.fatbin").read_bytes()
    with zipfile.ZipFile(wheel) as files:
        assert fatbin in files.read("kvpool/_core.abi3.so")


def test_types_are_shipped(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        assert {
            "kvpool/py.typed",
            "kvpool/_core/__init__.pyi",
            "kvpool/_core/manager.pyi",
            "kvpool/transfer/ops.py",
            "kvpool/data/example.jsonl.gz",
        } <= set(files.namelist())


def test_no_other_package_is_required(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = files.read(name).decode()
    required = re.findall(r"^Requires-Dist: (.*)$", metadata, flags=re.MULTILINE)
    assert [one for one in required if "extra ==" not in one] == []
    assert len([one for one in required if one.endswith(("extra == 'cli'", 'extra == "cli"'))]) == 2


def test_the_source_distribution_builds_the_same_kernels(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "maturin", "sdist", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        (name,) = [name for name in files.getnames() if name.endswith("/cuda/block_copy.fatbin")]
        # Where the crate looks for it, from its own folder.
        assert name.count("/") == 2
        packed = files.extractfile(name)
        assert packed is not None
        assert packed.read() == (ROOT / "cuda" / "block_copy.fatbin").read_bytes()
        assert any(name.endswith("/cuda/block_copy.cu") for name in files.getnames())
