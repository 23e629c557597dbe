"""Notices of what is linked into a wheel: licences of its crates, of Rust's standard library, of what zig adds.

A crate is linked if a wheel of any platform needs it where it runs; what only builds (macros, build scripts) is not in
it. Every crate has to bring the text of a licence, or is a failure: nobody is left out for want of a file.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tools.cargo_tools import ROOT, CheckFailedError, call, cargo, require

if TYPE_CHECKING:
    from collections.abc import Iterable

NOTICES: Final = "THIRD-PARTY-NOTICES.md"
#: As Rust ships it, beside its compiler.
STD_NOTICES: Final = "RUST-STANDARD-LIBRARY.html"
EXTENSION: Final = "kvpool-py"
_LICENCE: Final = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)([-_.].*)?", re.IGNORECASE)
_CODE: Final = frozenset({".rs", ".py", ".toml"})


class Linked(NamedTuple):
    """A crate of somebody else's that is in a wheel."""

    name: str
    version: str
    licence: str
    folder: Path

    def texts(self) -> dict[str, str]:
        """Its licence files."""
        files = [path for path in sorted(self.folder.iterdir()) if path.is_file() and _LICENCE.fullmatch(path.name)]
        files += sorted((self.folder / "LICENSES").glob("*")) if (self.folder / "LICENSES").is_dir() else []
        return {
            str(path.relative_to(self.folder)): path.read_text(encoding="utf-8", errors="replace")
            for path in files
            if path.suffix not in _CODE
        }


def linked(triples: Iterable[str], root: Path = ROOT) -> list[Linked]:
    """The crates of others that the extension of any of these platforms has in it."""
    names: set[tuple[str, str]] = set()
    for triple in triples:
        command = (cargo(), "tree", "--locked", "--package", EXTENSION, "--edges", "normal,no-proc-macro")
        said = call(*command, "--prefix", "none", "--format", "{p}", "--target", triple, cwd=root)
        for line in require(said, f"cargo tree for {triple}").splitlines():
            name, version = line.split()[:2]
            names.add((name, version.removeprefix("v")))
    text = require(call(cargo(), "metadata", "--locked", "--format-version", "1", cwd=root), "cargo metadata")
    packages: list[dict[str, Any]] = json.loads(text[text.index("{") :])["packages"]
    found = [
        Linked(one["name"], one["version"], one["license"] or "", Path(one["manifest_path"]).parent)
        for one in packages
        if one["source"] and (one["name"], one["version"]) in names
    ]
    return sorted(found)


def std_notices() -> bytes:
    """What Rust says of its standard library."""
    folder = Path(require(call("rustc", "--print", "sysroot"), "rustc").strip())
    path = folder / "share" / "doc" / "rust" / "COPYRIGHT-library.html"
    if not path.is_file():
        raise CheckFailedError(
            f"{path} is missing: a wheel has Rust's standard library in it, and has to say whose it is"
        )
    return path.read_bytes()


def of_the_linker() -> dict[str, str]:
    """What zig links in: the unwinder and the compiler's runtime of LLVM."""
    found = importlib.util.find_spec("ziglang")
    if found is None or not found.submodule_search_locations:
        return {}
    folder = Path(found.submodule_search_locations[0])
    files = {"LLVM's libunwind": folder / "lib/libunwind/LICENSE.TXT", "zig's compiler_rt": folder / "LICENSE"}
    return {name: path.read_text(encoding="utf-8") for name, path in files.items()}


def render(crates: list[Linked], linker: dict[str, str]) -> bytes:
    """The notices as a page of text. Each text stands once, below all that have it."""
    owners: dict[str, list[str]] = {}
    lines = []
    for crate in crates:
        title = f"{crate.name} {crate.version}"
        texts = crate.texts()
        if not texts or not crate.licence:
            raise CheckFailedError(
                f"{title} ({crate.licence or 'no licence'}) brings no text of a licence: {crate.folder}"
            )
        lines.append(f"- {title}: {crate.licence}")
        for name, text in texts.items():
            owners.setdefault(tidy(text), []).append(f"{title}, {name}")
    for name, text in linker.items():
        lines.append(f"- {name}")
        owners.setdefault(tidy(text), []).append(name)
    parts = [
        "# What else is in kvpool's wheels",
        "kvpool itself is under the Apache License 2.0, in LICENSE. The extension module has the following linked into "
        f"it, and Rust's standard library, whose notices are in {STD_NOTICES}.",
        "\n".join(lines),
    ]
    parts += [f"## {'; '.join(names)}\n\n```text\n{text}\n```" for text, names in owners.items()]
    return ("\n\n".join(parts) + "\n").encode()


def tidy(text: str) -> str:
    """A text without what differs between copies of it and is none of it."""
    return "\n".join(line.rstrip() for line in text.replace("\r\n", "\n").strip("\n").splitlines())
