"""A Python over musl, which runs wheels for musllinux where no container does: Debian's source, built by zig.

Nobody has one as a package of this system. It is built once, in minutes, and lies beside Debian's own musl in a root of
its own, whose loader runs it; that of another processor runs under qemu-user. Debian's musl is older than zig's: what a
wheel asks for has to be in it. Nothing is installed on this machine.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from tools.releasing import cpython
from tools.releasing.debian import fetch, fetch_source
from tools.releasing.targets import MissingError, has_zig

#: The oldest Python that a wheel is for.
VERSION: Final = "3.11"
#: In zig's musl, and not in Debian's.
_TOO_NEW: Final = ("preadv2", "pwritev2")
#: What a build for another machine cannot find out by running something.
_ANSWERS: Final = {
    "ac_cv_file__dev_ptmx": "yes",
    "ac_cv_file__dev_ptc": "no",
    **{f"ac_cv_func_{name}": "no" for name in _TOO_NEW},
}
#: zig takes care that builds are the same everywhere; CPython says when it was built.
_FLAGS: Final = ("-dynamic", "-Wno-date-time", "-fno-sanitize=undefined")

#: A compiler that does without the headers and libraries of this machine, which CPython's setup.py names all the same.
_SCRIPT: Final = """#!/bin/sh
for word do
  shift
  case "$word" in
    -I/usr/include* | -I/usr/local/* | -L/usr/lib* | -L/usr/local/* | -L/lib*) ;;
    *) set -- "$@" "$word" ;;
  esac
done
exec {line} "$@"
"""


def library(machine: str, folder: Path) -> Path:
    """musl's C library for a machine, out of Debian's package."""
    root = folder / f"musl-{machine}"
    found = root / f"lib/{machine}-linux-musl/libc.so"
    if not found.exists():
        fetch(["musl"], machine, root)
    return found


def loader(machine: str, folder: Path) -> Path:
    """What runs a program over musl: the C library itself."""
    library(machine, folder)
    return folder / f"musl-{machine}" / "lib" / f"ld-musl-{machine}.so.1"


def python(machine: str, folder: Path) -> Path:
    """The Python of a machine over musl; its root is three folders above."""
    root = folder / f"python-musl-{machine}"
    program = root / "usr" / "bin" / f"python{VERSION}"
    if not program.exists():
        build(machine, folder, root)
    return program


def build(machine: str, folder: Path, root: Path) -> None:
    """Builds it into ``root``, which appears whole or not at all."""
    host = build_python()
    readelf = shutil.which("readelf")
    if not has_zig() or readelf is None or shutil.which("make") is None:
        raise MissingError("no Python over musl: building one takes the package ziglang, make and readelf")
    source, zlib = (fetch_source(package, folder / "sources") for package in (f"python{VERSION}", "zlib"))
    with tempfile.TemporaryDirectory(dir=folder) as name:
        here = Path(name)
        tools = {key: str(path) for key, path in compilers(here, machine).items()}
        # It is built where its sources are, and linked in.
        inner = shutil.copytree(zlib, here / "zlib")
        cpython.run(inner / "configure", "--static", cwd=inner, environment={**tools, "CFLAGS": "-O1 -fPIC"})
        cpython.run("make", "libz.a", cwd=inner, environment=tools)
        answers = here / "config.site"
        answers.write_text("".join(f"{key}={value}\n" for key, value in _ANSWERS.items()), encoding="utf-8")
        environment = {
            **tools,
            "READELF": readelf,
            # It knows this machine's libraries: modules that need some are left out.
            "PKG_CONFIG": "false",
            "ZLIB_CFLAGS": f"-I{inner}",
            "ZLIB_LIBS": f"-L{inner} -lz",
            "CONFIG_SITE": str(answers),
            "CFLAGS": "-O1 -g0",
        }
        triple = f"{machine}-linux-musl"
        options = [f"--host={triple}", f"--build={os.uname().machine}-pc-linux-gnu", f"--with-build-python={host}"]
        # Modules of others are found by this name, which CPython has only from 3.13 on; distributions add it.
        configure = here / "configure"
        named = re.sub(
            rf"^(\s*{machine}-linux)-gnu$", r"\1-musl", (source / "configure").read_text(), flags=re.MULTILINE
        )
        configure.write_text(named)
        configure.chmod(0o755)
        cpython.install(configure, [f"--srcdir={source}", *options, "--disable-ipv6"], here, environment, root)


def build_python() -> Path:
    """A Python of this machine of the same version, which a build for another one runs."""
    ours = Path(sys.base_prefix, "bin", f"python{VERSION}")
    found = ours if ours.exists() else shutil.which(f"python{VERSION}")
    if not found:
        raise MissingError(f"no Python over musl: building one takes a python{VERSION} of this machine")
    return Path(found)


def compilers(folder: Path, machine: str) -> dict[str, Path]:
    """zig as the programs that a configure script looks for."""
    commands = {"CC": ("cc",), "CXX": ("c++",), "AR": ("ar",), "RANLIB": ("ranlib",)}
    made = {}
    for name, words in commands.items():
        more = ("-target", f"{machine}-linux-musl", *_FLAGS) if name in ("CC", "CXX") else ()
        line = shlex.join([sys.executable, "-m", "ziglang", *words, *more])
        made[name] = folder / words[0]
        made[name].write_text(_SCRIPT.format(line=line), encoding="utf-8")
        made[name].chmod(0o755)
    return made
