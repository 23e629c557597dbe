"""Packages of Debian for any machine, unpacked into a folder. This machine's own lists are neither read nor changed."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.cargo_tools import CheckFailedError, call, require
from tools.releasing.targets import MissingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


def fetch_source(package: str, folder: Path, suite: str = "", digests: Mapping[str, str] | None = None) -> Path:
    """The folder of the sources of a package: as their makers have released them, without Debian's changes.

    Of this machine's suite, or of another one. Debian's signed index says what they are; an archive that ``digests``
    names has that SHA-256 as well.
    """
    root = folder / package
    if not root.exists():
        if shutil.which("apt-get") is None:
            raise MissingError(f"no apt to fetch the source of {package} with")
        with tempfile.TemporaryDirectory() as temporary:
            here = Path(temporary)
            (here / "parts").mkdir()
            for path in [path for path in _LISTS if path.is_file()]:
                text = of_sources(path.read_text(encoding="utf-8"))
                (here / "parts" / path.name.replace("sources.list", "own.list")).write_text(
                    of_suite(text, suite) if suite else text, encoding="utf-8"
                )
            options = [*own_state(here), "-o", "Dir::Etc::SourceList=/dev/null"]
            options += ["-o", f"Dir::Etc::SourceParts={here / 'parts'}"]
            for words in (["update"], ["source", "--tar-only", "--only-source", package]):
                apt(here, options, words)
            (archive,) = here.glob("*.orig.tar.*[!c]")
            digest = hashlib.sha256(archive.read_bytes()).hexdigest()
            if (wanted := (digests or {}).get(archive.name, digest)) != digest:
                raise CheckFailedError(f"{archive.name} has the SHA-256 {digest}, not {wanted}")
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


def of_suite(text: str, suite: str) -> str:
    """A list of packages with another suite: of each archive that has it, which that of security updates is not."""
    kept = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line for line in paragraph.splitlines() if line.strip() and not line.startswith("#")]
        if any(re.match(r"Types:", line) for line in lines):
            if not re.search(r"^Suites:.*-security", paragraph, flags=re.M):
                kept.append("\n".join(re.sub(r"^(Suites:[ \t]*).*$", rf"\g<1>{suite}", line) for line in lines) + "\n")
        else:
            found = [re.fullmatch(r"(deb\S*\s+(?:\[.*?\]\s+)?\S+\s+)(\S+)(\s.*)", line) for line in lines]
            kept += [
                f"{one[1]}{suite}{one[3]}" for one in found if one and not one[2].endswith(("-security", "/updates"))
            ]
    return "\n".join(dict.fromkeys(kept)) + "\n"


def own_state(folder: Path) -> list[str]:
    """Options of apt that keep what it learns in a folder."""
    (folder / "lists/partial").mkdir(parents=True)
    (folder / "cache/archives/partial").mkdir(parents=True)
    return ["-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}"]


def apt(folder: Path, options: Sequence[str], words: Sequence[str]) -> None:
    """One command of apt; what it cannot fetch is missing."""
    done = call("apt-get", "--quiet", *options, *words, cwd=folder)
    if done.returncode != 0:
        errors = [line.removeprefix("E: ") for line in done.stdout.splitlines() if line.startswith("E: ")]
        raise MissingError(f"apt-get {words[0]}: {' '.join(' '.join(errors or [done.stdout]).split()[-40:])}")
