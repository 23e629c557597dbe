"""Builds a wheel, or the source distribution, from the sources of a release, and takes this machine out of it.

Two things would tell where a wheel was built: the paths of sources in panics, which rustc is told to name otherwise,
and the bill of materials, which cargo-cyclonedx fills with them. That is rewritten in the wheel, with the time of the
commit and a serial number of its content. So the same commit, tools and target give the same bytes in any folder.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import uuid
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.cargo_tools import ROOT, CheckFailedError, call, cargo_home, require
from tools.releasing.targets import Target, linking, need_std

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: What paths of a machine are called in what is shipped.
_SOURCES: Final = "kvpool"
_CRATES: Final = "crates.io"


def private_paths(tree: Path) -> list[Path]:
    """The folders of this machine that nothing that is shipped may name."""
    homes = [cargo_home(), Path(os.environ.get("RUSTUP_HOME") or Path.home() / ".rustup"), Path.home()]
    return [path for path in dict.fromkeys([tree, ROOT, *homes]) if path != Path("/")]


def remapped(tree: Path) -> str:
    """Flags of rustc that name paths of this machine otherwise. The last one that fits counts."""
    pairs = [(cargo_home(), "cargo"), (tree, _SOURCES)]
    registry = cargo_home() / "registry" / "src"
    pairs += [(path, _CRATES) for path in sorted(registry.iterdir())] if registry.is_dir() else []
    # Apart by what no path has: a folder may have a space in its name.
    return "\x1f".join(f"--remap-path-prefix={path}={name}" for path, name in pairs)


def build_wheel(target: Target, tree: Path, out: Path, objects: Path, seconds: int) -> tuple[Path, str]:
    """One wheel in ``out``, and how it was linked.

    Raises:
        MissingError: What it takes is not here.
        CheckFailedError: It does not build.

    """
    arguments, variables, how = linking(target)
    need_std(target.triple)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        command = (sys.executable, "-m", "maturin", "build", "--release", "--locked", "--target", target.triple)
        environment = {
            "CARGO_ENCODED_RUSTFLAGS": remapped(tree),
            "CARGO_TARGET_DIR": str(objects),
            # Stripped anyway: it would only be linked for nothing.
            "CARGO_PROFILE_RELEASE_DEBUG": "0",
            "SOURCE_DATE_EPOCH": str(seconds),
            # Where maturin looks for a Python with ziglang.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **variables,
        }
        done = call(*command, "--interpreter", target.python, "--out", folder, *arguments, cwd=tree, **environment)
        require(done, f"maturin build of {target.name}")
        (built,) = Path(folder).glob("*.whl")
        wheel = out / built.name
        with compressing_well():
            rewrite(built, wheel, lambda name, data: scrubbed(name, data, tree, seconds))
    return wheel, how


def build_sdist(tree: Path, out: Path, seconds: int) -> Path:
    """The source distribution in ``out``."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        command = (sys.executable, "-m", "maturin", "sdist", "--out", folder)
        require(call(*command, cwd=tree, SOURCE_DATE_EPOCH=str(seconds)), "maturin sdist")
        (built,) = Path(folder).glob("*.tar.gz")
        return Path(shutil.move(built, out / built.name))


def scrubbed(name: str, data: bytes, tree: Path, seconds: int) -> bytes:
    """A file of a wheel without what depends on the machine: only bills of materials are rewritten."""
    if not re.search(r"\.dist-info/sboms/.*\.json$", name):
        return data
    bill: dict[str, Any] = json.loads(data.replace(f"file://{tree}".encode(), f"file:///{_SOURCES}".encode()))
    bill["metadata"]["timestamp"] = datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()
    bill.pop("serialNumber", None)
    text = json.dumps(bill, sort_keys=True)
    bill["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}"
    return (json.dumps(bill, indent=1, sort_keys=True) + "\n").encode()


def rewrite(source: Path, target: Path, change: Callable[[str, bytes], bytes]) -> None:
    """Copies a wheel with each file changed as ``change`` says, and RECORD made anew."""
    with zipfile.ZipFile(source) as old:
        entries = [(info, change(info.filename, old.read(info))) for info in old.infolist()]
    records = [info.filename for info, _ in entries if info.filename.endswith(".dist-info/RECORD")]
    if len(records) != 1:
        raise CheckFailedError(f"{source.name} has {len(records)} RECORD files")
    lines = [
        f"{info.filename},sha256={digest(data)},{len(data)}" for info, data in entries if info.filename not in records
    ]
    record = "\n".join([*lines, f"{records[0]},,", ""]).encode()
    with zipfile.ZipFile(target, "w") as new:
        for info, data in entries:
            info.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(info, record if info.filename in records else data, compresslevel=9)


class Zopfli:
    """A compressor as zipfile asks for one: deflate without a header."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def compress(self, data: bytes) -> bytes:
        self._parts.append(bytes(data))
        return b""

    def flush(self) -> bytes:
        import zopfli.zlib  # of a release alone

        packed: bytes = zopfli.zlib.compress(b"".join(self._parts), numiterations=5)
        # zlib's form: two bytes before, a checksum of four behind.
        return packed[2:-4]


@contextlib.contextmanager
def compressing_well() -> Iterator[None]:
    """Archives that are written meanwhile are deflated by Zopfli: 3 % smaller, in ten seconds instead of one.

    What reads them knows no difference. zipfile takes no compressor from outside, so its own maker of them is replaced.
    """
    maker = "_get_compressor"
    kept = getattr(zipfile, maker)
    setattr(zipfile, maker, lambda kind, *more: Zopfli() if kind == zipfile.ZIP_DEFLATED else kept(kind, *more))
    try:
        yield
    finally:
        setattr(zipfile, maker, kept)


def digest(data: bytes) -> str:
    """As RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
