"""A free-threaded Python, which runs the wheels for it where none is installed: Debian's source, built without the GIL.

No Debian has one as a package. Its unstable suite has the source; it is built once, in minutes, by this machine's
compiler. Nothing is installed on this machine.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

from tools.cargo_tools import call
from tools.releasing import cpython
from tools.releasing.debian import fetch_source
from tools.releasing.targets import MissingError

#: The series that the wheels are for.
VERSION: Final = "3.14"
_SUITE: Final = "sid"
#: What Debian's signed index said of the archive that this was written for. A newer one of the series is taken by what
#: that index says of it.
_DIGESTS: Final = {
    "python3.14_3.14.10.orig.tar.xz": "de414a57119abef52784d8993e341d53aed635fc2b05c2607d9f98a2c5b72032",
}
#: Without them pip reaches no index, and unpacks nothing.
_HEADERS: Final = ("openssl/ssl.h", "zlib.h")


def python(folder: Path) -> Path:
    """It, in the work folder; built there if it is not yet."""
    root = folder / "python-free-threaded"
    program = root / "usr" / "bin" / f"python{VERSION}t"
    if not program.exists():
        build(folder, root)
    return program


def build(folder: Path, root: Path) -> None:
    """Builds it into ``root``, which appears whole or not at all."""
    compiler = shutil.which("cc")
    if compiler is None or shutil.which("make") is None:
        raise MissingError(f"no python{VERSION}t is here, and building one takes cc and make")
    for header in _HEADERS:
        if call(compiler, "-E", "-include", header, "-x", "c", "/dev/null").returncode != 0:
            raise MissingError(f"no python{VERSION}t is here, and building one takes the header {header}")
    try:
        source = fetch_source(f"python{VERSION}", folder / "sources", _SUITE, _DIGESTS)
    except MissingError as error:
        raise MissingError(f"no python{VERSION}t is here, nor the source to build one: {error}") from error
    with tempfile.TemporaryDirectory(dir=folder) as name:
        cpython.install(source / "configure", ["--disable-gil"], Path(name), {"CFLAGS": "-O1 -g0"}, root)
