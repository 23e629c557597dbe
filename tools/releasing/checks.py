"""What has to hold of a file before it is shipped. Each check reads the file alone, and says what it found.

What is checked by running a wheel is in ``running.py``.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import tarfile
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tools.cargo_tools import CheckFailedError, call, require
from tools.markdown_links import links
from tools.releasing.notices import NOTICES, STD_NOTICES, Linked
from tools.releasing.wheel import digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tools.releasing.targets import Target

#: Bytes of a wheel, of the source distribution. Near 4 MB only with bindings that are built for size, and slower by a
#: fifth inside vLLM.
LARGEST: Final = 4_800_000
#: Folders of people: no path below them belongs into anything that is shipped.
_HOMES: Final = re.compile(rb"/(?:home|root|Users)/[\w.][^\0\s\"']{0,80}")
_EXTENSIONS: Final = {"cp311-abi3": r"kvpool/_core\.abi3\.so", "cp314-cp314t": r"kvpool/_core\.cpython-314t[^/]*\.so"}


def read(path: Path) -> dict[str, bytes]:
    """The files of an archive."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as files:
            return {name: files.read(name) for name in files.namelist() if not name.endswith("/")}
    with tarfile.open(path) as files:
        members = [(member.name, files.extractfile(member)) for member in files.getmembers() if member.isfile()]
        return {name: file.read() for name, file in members if file is not None}


def only(files: Iterable[str], pattern: str) -> str:
    """The one file whose name matches."""
    found = [name for name in files if re.fullmatch(pattern, name)]
    if len(found) != 1:
        raise CheckFailedError(f"expected one file {pattern}, found {', '.join(found) or 'none'}")
    return found[0]


def check_size(path: Path) -> str:
    size = path.stat().st_size
    if size >= LARGEST:
        raise CheckFailedError(f"{path.name} has {size:,} bytes, the limit is {LARGEST:,}")
    return f"{size / 1e6:.2f} MB, under {LARGEST / 1e6:.1f} MB"


def check_paths(path: Path, private: Iterable[Path]) -> str:
    """No path of the machine that built it, in any file: in panics of the extension least of all."""
    named = [str(one).encode() for one in private]
    for name, data in read(path).items():
        for one in named:
            if (at := data.find(one)) >= 0:
                raise CheckFailedError(f"{path.name}: {name} names {data[at : at + 100]!r}")
        # Our own sources and docs have made-up ones.
        if name.endswith(".so") and (found := _HOMES.search(data)):
            raise CheckFailedError(f"{path.name}: {name} names {found[0]!r}")
    return "no path of this machine"


def check_name(path: Path, target: Target, version: str) -> str:
    """The name, what is in WHEEL, and the extension are for the same Python and the same platform."""
    tags = path.name.removesuffix(".whl").removeprefix(f"kvpool-{version}-{target.abi}-")
    if "-" in tags or not tags.endswith(target.machine):
        raise CheckFailedError(f"{path.name} is not of kvpool {version}, {target.abi}, {target.machine}")
    files = read(path)
    only(files, _EXTENSIONS[target.abi])
    wheel = Parser().parsestr(files[only(files, r"kvpool-[^/]*\.dist-info/WHEEL")].decode())
    told = {tag.removeprefix(f"{target.abi}-") for tag in wheel.get_all("Tag", [])}
    if told != set(tags.split(".")):
        raise CheckFailedError(f"{path.name}: its name says {tags}, WHEEL says {', '.join(sorted(told))}")
    return f"{target.abi}, {tags}"


def check_record(path: Path) -> str:
    """RECORD lists every file, as it is."""
    files = read(path)
    record = only(files, r"kvpool-[^/]*\.dist-info/RECORD")
    rows = {row[0]: row[1] for row in csv.reader(io.StringIO(files[record].decode())) if row}
    wrong = sorted(rows.keys() ^ files.keys())
    wrong += [name for name, data in files.items() if name != record and rows.get(name) != f"sha256={digest(data)}"]
    if wrong:
        raise CheckFailedError(f"{path.name}: RECORD does not fit {', '.join(dict.fromkeys(wrong))}")
    return f"{len(files)} files as RECORD lists them"


def check_metadata(path: Path) -> str:
    """It needs no package, brings the command and the plug-in, and names its licences."""
    files = read(path)
    metadata = Parser().parsestr(files[only(files, r"kvpool-[^/]*\.dist-info/METADATA")].decode())
    needed = [one for one in metadata.get_all("Requires-Dist", []) if "extra ==" not in one]
    if needed:
        raise CheckFailedError(f"{path.name} requires {', '.join(needed)}: a scheduler needs no package")
    named = metadata.get_all("License-File", [])
    for name in ("LICENSE", NOTICES, STD_NOTICES):
        if name not in named or not any(file.endswith(f".dist-info/licenses/{name}") for file in files):
            raise CheckFailedError(f"{path.name} has no {name}, or does not name it")
    points = files[only(files, r"kvpool-[^/]*\.dist-info/entry_points\.txt")].decode()
    for point in ("kvpool=kvpool.__main__:main", "kvpool=kvpool.integrations.vllm:register"):
        if point not in points.replace(" ", ""):
            raise CheckFailedError(f"{path.name} has no entry point {point}")
    return f"needs no package; extras {', '.join(metadata.get_all('Provides-Extra', []))}"


def check_description(path: Path) -> str:
    """What an index shows has no link to a file that it has not."""
    files = read(path)
    name = r"kvpool-[^/]*\.dist-info/METADATA" if path.suffix == ".whl" else r"kvpool-[^/]*/PKG-INFO"
    page = Parser().parsestr(files[only(files, name)].decode()).get_payload()
    if not isinstance(page, str) or not page.strip():
        raise CheckFailedError(f"{path.name} has no description")
    targets = [link["target"] for link in links(page)]
    if wrong := [target for target in targets if not target.startswith(("https://", "mailto:", "#"))]:
        raise CheckFailedError(f"{path.name}: its description links to {', '.join(wrong)}")
    return f"description with {len(targets)} links, all absolute" if targets else "description: NO LINKS, no repository"


def check_notices(path: Path, crates: list[Linked]) -> str:
    """Everything that is linked is in the notices, and in the bill of materials."""
    files = read(path)
    notices = files[only(files, rf".*\.dist-info/licenses/{re.escape(NOTICES)}")].decode()
    bill: dict[str, Any] = json.loads(files[only(files, r".*\.dist-info/sboms/.*\.json")])
    listed = {(one["name"], one["version"]) for one in bill["components"]}
    for crate in crates:
        if f"- {crate.name} {crate.version}: " not in notices:
            raise CheckFailedError(f"{path.name}: {NOTICES} lacks {crate.name} {crate.version}")
        if (crate.name, crate.version) not in listed:
            raise CheckFailedError(f"{path.name}: the bill of materials lacks {crate.name} {crate.version}")
    return f"notices of {len(crates)} crates, bill of materials with {len(listed)}"


def check_platform(path: Path, libc: Path | None = None) -> str:
    """auditwheel: its symbols and libraries are those of every system that the tag promises.

    It looks for the libraries by name: of musl, whose ``libc.so`` is a text file in other systems, it has to be told.
    And it knows musl by the name that Alpine gives it; ``libc.so`` is musl's own, and its loader takes it for itself.
    """
    where = [f"--ldpaths={libc.parent}"] if libc else []
    said = call(sys.executable, "-m", "auditwheel", "show", "--json", *where, path)
    told: dict[str, Any] = json.loads(require(said, f"auditwheel of {path.name}")[said.stdout.index("{") :])
    tag = told["overall_tag"]
    if libc and list(told["external_libs"]) == ["libc.so"]:
        tag = told["sym_tag"]
    tags = path.name.removesuffix(".whl").rpartition("-")[2].split(".")
    if tag not in tags:
        raise CheckFailedError(f"{path.name} promises {', '.join(tags)}; auditwheel says {tag}")
    return f"auditwheel: {tag}"


def symbols(library: bytes) -> tuple[set[str], set[str]]:
    """What a library asks others for, weak symbols left out, and what it has."""
    table = ELFFile(io.BytesIO(library)).get_section_by_name(".dynsym")
    if not isinstance(table, SymbolTableSection):
        raise CheckFailedError("a library without a table of symbols")
    asked, has = set(), set()
    for symbol in table.iter_symbols():
        if symbol["st_shndx"] != "SHN_UNDEF":
            has.add(symbol.name)
        elif symbol["st_info"]["bind"] == "STB_GLOBAL":
            asked.add(symbol.name)
    return asked, has


def check_copies(path: Path) -> str:
    """Memory is copied by the system's functions: those that a linker may bring along are many times slower."""
    files = read(path)
    asked, _ = symbols(files[only(files, r"kvpool/_core\..*so")])
    if own := {"memcpy", "memmove", "memset", "memcmp"} - asked:
        raise CheckFailedError(f"{path.name} has a {', '.join(sorted(own))} of its own")
    return "copies by the system's memcpy"


def check_musl(path: Path, libc: Path) -> str:
    """Every symbol that the extension asks for is Python's or in this C library: what its loader would say first."""
    files = read(path)
    asked, _ = symbols(files[only(files, r"kvpool/_core\..*so")])
    of_python = {name for name in asked if re.match("_?Py", name)}
    missing = sorted(asked - of_python - symbols(libc.read_bytes())[1])
    if missing:
        raise CheckFailedError(f"{path.name} asks musl for {', '.join(missing)}")
    return f"musl has all {len(asked) - len(of_python)} symbols that are not Python's"


def check_limited_api(path: Path) -> str:
    """abi3audit: no symbol outside of the limited API that the name promises."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        done = call(sys.executable, "-m", "abi3audit", "--strict", "--report", "--output", report, path)
        require(done, f"abi3audit of {path.name}")
        told: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    (extension,) = [part for spec in told["specs"].values() for part in spec["wheel"]]
    result = extension["result"]
    if not (result["is_abi3"] and result["is_abi3_baseline_compatible"]):
        raise CheckFailedError(f"{path.name} keeps not to the limited API: {result}")
    return f"abi3audit: the limited API of Python {result['baseline']}"


def check_twine(path: Path) -> str:
    """twine: the package index takes it, and shows its description."""
    require(call(sys.executable, "-m", "twine", "check", "--strict", path), f"twine check of {path.name}")
    return "twine: the index takes it"
