"""Builds the fake driver with the available C++ compiler. Builds again only if the sources have
changed.

For tests in other languages, ``python tests/transfer/fake_cuda/build.py DIRECTORY`` writes
``libcuda.so.1`` to the directory and prints its path.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
KERNELS = ROOT / "cuda" / "block_copy.cu"
CACHE = ROOT / "target" / "fake-cuda"
NAME = "libcuda.so.1"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-DKVPOOL_EMULATE")


class CompilerMissingError(RuntimeError):
    """This machine has no C++ compiler."""


def find_compiler() -> list[str]:
    """Return the command of a C++ compiler: $CXX, the system's compiler, or the ``ziglang`` wheel's."""
    named = os.environ.get("CXX")
    if named:
        command = shlex.split(named)
        if shutil.which(command[0]) is None:
            raise CompilerMissingError(f"$CXX names {command[0]!r}, which is not to be found")
        return command
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return [path]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "c++"]
    raise CompilerMissingError(
        "the fake CUDA driver is C++, and there is no compiler: set $CXX, "
        "install g++ or clang++, or the ziglang wheel"
    )


def _sources() -> list[Path]:
    return sorted([*FOLDER.glob("*.hpp"), *FOLDER.glob("*.cpp"), KERNELS])


def _compile(command: list[str], output: Path) -> None:
    """Compile to a temporary name, because several test processes may do this at the same time. Then
    rename the file.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        fresh = Path(folder) / NAME
        arguments = [
            *command,
            *FLAGS,
            "-I",
            str(KERNELS.parent),
            str(FOLDER / "fake_cuda.cpp"),
            "-o",
            str(fresh),
        ]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(arguments)} failed:\n{done.stdout}{done.stderr}")
        fresh.replace(output)


def build(target: Path) -> Path:
    """Write the fake driver into the directory ``target`` and return the path of the library."""
    command = find_compiler()
    digest = hashlib.sha256(repr((command, FLAGS)).encode())
    for source in _sources():
        digest.update(source.read_bytes())
    cached = CACHE / digest.hexdigest()[:16] / NAME
    if not cached.exists():
        _compile(command, cached)
    target.mkdir(parents=True, exist_ok=True)
    library = target / NAME
    shutil.copyfile(cached, library)
    return library


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} DIRECTORY")
    print(build(Path(sys.argv[1])))
