"""Packages of Debian for any machine, unpacked into a folder. This machine's own lists are neither read nor changed."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.cargo_tools import call, require
from tools.releasing.targets import MissingError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What Debian calls machines.
NAMES: Final = {"aarch64": "arm64", "x86_64": "amd64"}
#: Where a Debian lists its own sources.
_LISTS: Final = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d/debian.sources"))


def fetch(packages: Sequence[str], machine: str, root: Path) -> None:
    """Unpacks packages for a machine into ``root``, which appears whole or not at all."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None or machine not in NAMES:
        raise MissingError(f"no apt to fetch {packages[0]} with, and nothing else to run it under")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        options = [*own_state(folder), "-o", f"APT::Architectures::={NAMES[machine]}"]
        for words in (["update"], ["download", *(f"{package}:{NAMES[machine]}" for package in packages)]):
            apt(folder, options, words)
        fresh = root.with_name(f"{root.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for package in sorted(folder.glob("*.deb")):
            require(call("dpkg", "--extract", package, fresh), f"dpkg of {package.name}")
        shutil.rmtree(root, ignore_errors=True)
        fresh.rename(root)


def fetch_source(package: str, folder: Path) -> Path:
    """The folder of the sources of a package: as their makers have released them, without Debian's changes."""
    root = folder / package
    if not root.exists():
        if shutil.which("apt-get") is None:
            raise MissingError(f"no apt to fetch the source of {package} with")
        with tempfile.TemporaryDirectory() as temporary:
            here = Path(temporary)
            (here / "parts").mkdir()
            for path in [path for path in _LISTS if path.is_file()]:
                (here / "parts" / path.name.replace("sources.list", "own.list")).write_text(
                    of_sources(path.read_text(encoding="utf-8")), encoding="utf-8"
                )
            options = [*own_state(here), "-o", "Dir::Etc::SourceList=/dev/null"]
            options += ["-o", f"Dir::Etc::SourceParts={here / 'parts'}"]
            for words in (["update"], ["source", "--tar-only", "--only-source", package]):
                apt(here, options, words)
            (archive,) = here.glob("*.orig.tar.*[!c]")
            unpacked = here / "unpacked"
            shutil.unpack_archive(archive, unpacked, filter="data")
            (inner,) = unpacked.iterdir()
            folder.mkdir(parents=True, exist_ok=True)
            shutil.move(inner, folder / f"{package}.new")
            (folder / f"{package}.new").rename(root)
    return root


def of_sources(text: str) -> str:
    """A list of binary packages as one of source packages, in either of apt's forms."""
    return re.sub(r"^(Types:[ \t]*)deb\b.*$", r"\1deb-src", re.sub(r"^deb ", "deb-src ", text, flags=re.M), flags=re.M)


def own_state(folder: Path) -> list[str]:
    """Options of apt that keep what it learns in a folder."""
    (folder / "lists/partial").mkdir(parents=True)
    (folder / "cache/archives/partial").mkdir(parents=True)
    return ["-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}"]


def apt(folder: Path, options: Sequence[str], words: Sequence[str]) -> None:
    """One command of apt; what it cannot fetch is missing."""
    done = call("apt-get", "--quiet", *options, *words, cwd=folder)
    if done.returncode != 0:
        raise MissingError(f"apt-get {words[0]}: {' '.join(done.stdout.split()[-40:])}")
