#!/usr/bin/env python3
"""Writes the licence notices of all code that is linked into a wheel: crates, Rust's standard library,
and code that zig adds.

    python tools/release/notices.py target/release-build/sources

A crate is linked if the extension needs it at run time on any platform of a release. Crates that are
only used for building, such as macros and build scripts, are not in a wheel. If a crate has no licence
text, that is an error.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

NOTICES: Final = "THIRD-PARTY-NOTICES.md"
#: The page with the licences of the standard library, which Rust ships with its compiler.
STD_NOTICES: Final = "RUST-STANDARD-LIBRARY.html"
TRIPLES: Final = tuple(
    f"{one}-unknown-linux-{libc}" for one in ("x86_64", "aarch64") for libc in ("gnu", "musl")
)
_LICENCE: Final = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)([-_.].*)?", re.IGNORECASE)
_CODE: Final = frozenset({".rs", ".py", ".toml"})


def output(*command: str, cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked(sources: Path) -> list[dict[str, Any]]:
    """Returns the third-party crates in the extension, as ``cargo metadata`` describes them."""
    cargo = os.environ.get("CARGO", "cargo")
    names: set[tuple[str, str]] = set()
    tree = (
        cargo,
        "tree",
        "--locked",
        "--package",
        "kvpool-py",
        "--edges",
        "normal,no-proc-macro",
        "--prefix",
        "none",
    )
    for triple in TRIPLES:
        for line in output(*tree, "--format", "{p}", "--target", triple, cwd=sources).splitlines():
            name, version = line.split()[:2]
            names.add((name, version.removeprefix("v")))
    packages = json.loads(output(cargo, "metadata", "--locked", "--format-version", "1", cwd=sources))[
        "packages"
    ]
    found = [one for one in packages if one["source"] and (one["name"], one["version"]) in names]
    return sorted(found, key=lambda one: (one["name"], one["version"]))


def texts(folder: Path) -> dict[str, str]:
    """Returns the texts of a crate's licence files."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and _LICENCE.fullmatch(path.name)]
    files += sorted((folder / "LICENSES").glob("*"))
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8", errors="replace")
        for path in files
        if path.suffix not in _CODE
    }


def of_the_linker() -> dict[str, str]:
    """Returns the licences of the code that zig links in: LLVM's unwinder, and the compiler's runtime."""
    found = importlib.util.find_spec("ziglang")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("notices: the package ziglang is missing, which links the wheels")
    folder = Path(found.submodule_search_locations[0])
    files = {
        "LLVM's libunwind": folder / "lib/libunwind/LICENSE.TXT",
        "zig's compiler_rt": folder / "LICENSE",
    }
    return {name: path.read_text(encoding="utf-8") for name, path in files.items()}


def page(crates: list[dict[str, Any]], linker: dict[str, str]) -> str:
    """Returns the notices in Markdown. A licence text that several crates share appears once."""
    owners: dict[str, list[str]] = {}
    lines = []
    for crate in crates:
        title, folder = f"{crate['name']} {crate['version']}", Path(crate["manifest_path"]).parent
        found = texts(folder)
        if not found or not crate["license"]:
            raise SystemExit(f"notices: {title} has no licence, or no text of one: {folder}")
        lines.append(f"- {title}: {crate['license']}")
        for name, text in found.items():
            owners.setdefault(tidy(text), []).append(f"{title}, {name}")
    for name, text in linker.items():
        lines.append(f"- {name}")
        owners.setdefault(tidy(text), []).append(name)
    parts = [
        "# What else is in kvpool's wheels",
        "kvpool itself is under the Apache License 2.0, in LICENSE. The extension module contains the "
        "following, and "
        f"Rust's standard library, whose notices are in {STD_NOTICES}.",
        "\n".join(lines),
        *(f"## {'; '.join(names)}\n\n```text\n{text}\n```" for text, names in owners.items()),
    ]
    return "\n\n".join(parts) + "\n"


def tidy(text: str) -> str:
    """Makes line ends and blanks of a licence text uniform, so that equal texts of different crates
    compare equal.
    """
    return "\n".join(line.rstrip() for line in text.replace("\r\n", "\n").strip("\n").splitlines())


def main() -> None:
    sources = Path(sys.argv[1])
    (sources / NOTICES).write_text(page(linked(sources), of_the_linker()), encoding="utf-8")
    sysroot = Path(output("rustc", "--print", "sysroot", cwd=sources).strip())
    (sources / STD_NOTICES).write_bytes((sysroot / "share/doc/rust/COPYRIGHT-library.html").read_bytes())


if __name__ == "__main__":
    main()
