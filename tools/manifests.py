#!/usr/bin/env python3
"""What every manifest of this repository has to say, checked in a second: ``make lint`` runs it.

    python tools/manifests.py

- Every dependency has its reason: a comment behind it, or the comment line right above it, of its own. That goes for
  Cargo.toml (a crate that names a dependency of the workspace has the workspace's), for pyproject.toml (dependencies,
  extras, groups, what builds) and for tools/*requirements*.txt.
- Every dependency is used: a crate's sources name it, a member names what the workspace lists.
- Every requirement of a Python package has a lower bound or is pinned; requirements files pin, with digests.
- Builds are locked: every call of cargo or maturin that resolves dependencies has ``--locked``.
- Crates are built once: the extension that the tests install has each crate with the features that its tests have.

Only the standard library is needed, and cargo.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
#: Calls of cargo that read Cargo.lock, and would write it. cargo fmt does not, cargo fuzz has no such option.
LOCKED: Final = {
    "cargo": frozenset(
        {"bench", "build", "check", "clippy", "doc", "fetch", "install", "llvm-cov", "metadata", "nextest", "package"}
        | {"publish", "run", "rustc", "test", "tree"}
    ),
    "maturin": frozenset({"build", "develop"}),
}
_BUILT: Final = frozenset({"target", "dist", "build", "__pycache__"})
_DEPENDENCIES: Final = ("dependencies", "dev-dependencies", "build-dependencies")
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'')
_REASON: Final = re.compile(r"#.*\w")
_BOUND: Final = re.compile(r"(>=|==|~=)\s*[0-9]")


class Problem(NamedTuple):
    """Something that a manifest lacks."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def files_named(root: Path, pattern: str) -> list[Path]:
    """Files whose name matches, without what was built and what is hidden."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _BUILT and not name.startswith("."))
        found += [Path(folder, name) for name in sorted(names) if re.fullmatch(pattern, name)]
    return found


def has_reason(lines: list[str], at: int) -> bool:
    """Whether a line ends in a comment, or the one above is a comment and nothing else."""
    if _REASON.search(_STRINGS.sub("", lines[at])):
        return True
    return at > 0 and lines[at - 1].lstrip().startswith("#") and bool(_REASON.search(lines[at - 1]))


def line_of(lines: list[str], pattern: str) -> int:
    """The first line that matches, or the first of all."""
    return next((at for at, line in enumerate(lines) if re.match(pattern, line)), 0)


# Rust


def dependency_tables(manifest: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each table of dependencies, as its header spells it, and the table."""
    for kind in _DEPENDENCIES:
        yield kind, manifest.get(kind, {})
        for target, tables in manifest.get("target", {}).items():
            yield rf"target\..*{re.escape(target)}.*\.{kind}", tables.get(kind, {})
    yield r"workspace\.dependencies", manifest.get("workspace", {}).get("dependencies", {})


def dependency_line(lines: list[str], table: str, name: str) -> int:
    """Where a dependency stands: ``name = ...`` below its table's header, or a header of its own."""
    start = line_of(lines, rf"\[{table}\]")
    for at in range(start + 1, len(lines)):
        if lines[at].startswith("["):
            break
        if re.match(rf"{re.escape(name)}(\.\w+)?\s*=", lines[at]):
            return at
    return line_of(lines, rf"\[{table}\.{re.escape(name)}\]")


def is_named(name: str, sources: Iterable[Path]) -> bool:
    """Whether Rust sources name a crate."""
    crate = re.escape(name.replace("-", "_"))
    named = re.compile(rf"\b{crate}::|\buse\s+{crate}\b|\bextern\s+crate\s+{crate}\b")
    return any(named.search(source.read_text(encoding="utf-8")) for source in sources)


def check_rust(root: Path) -> Iterator[Problem]:
    """Reasons and uses of the dependencies of every crate."""
    listed: dict[str, tuple[Path, int]] = {}
    named: set[str] = set()
    for path in files_named(root, r"Cargo\.toml"):
        text = path.read_text(encoding="utf-8")
        lines, manifest, short = text.splitlines(), tomllib.loads(text), path.relative_to(root)
        sources = files_named(path.parent, r".*\.rs") if "package" in manifest else []
        if library := manifest.get("lib", {}).get("path"):
            # A crate may compile the sources of another one.
            sources += files_named((path.parent / library).resolve().parent, r".*\.rs")
        for table, dependencies in dependency_tables(manifest):
            for name, wanted in dependencies.items():
                at = dependency_line(lines, table, name)
                told = wanted if isinstance(wanted, dict) else {}
                in_workspace = table == r"workspace\.dependencies"
                if in_workspace and "path" not in told:
                    listed[name] = (short, at + 1)
                elif told.get("workspace"):
                    named.add(name)
                if not told.get("workspace") and "path" not in told and not has_reason(lines, at):
                    yield Problem(short, at + 1, f"{name} has no reason: say in a comment what it is for")
                if not in_workspace and not is_named(name, sources):
                    yield Problem(short, at + 1, f"{name} is not used: no source of the crate names it")
    for name in sorted(listed.keys() - named):
        path, line = listed[name]
        yield Problem(path, line, f"{name} is not used: no member of the workspace names it")


# Python


def requirements(project: dict[str, Any]) -> Iterator[str]:
    """Every requirement of a pyproject.toml. A group that includes another says so in a table, which is none."""
    yield from project.get("build-system", {}).get("requires", [])
    yield from project.get("project", {}).get("dependencies", [])
    for extra in project.get("project", {}).get("optional-dependencies", {}).values():
        yield from extra
    for group in project.get("dependency-groups", {}).values():
        yield from (requirement for requirement in group if isinstance(requirement, str))


def check_python(root: Path) -> Iterator[Problem]:
    """Reasons and bounds of the requirements in pyproject.toml."""
    path = root / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    lines, short = text.splitlines(), path.relative_to(root)
    wanted: dict[str, int] = {}
    for requirement in requirements(tomllib.loads(text)):
        wanted[requirement] = wanted.get(requirement, 0) + 1
    for requirement, times in wanted.items():
        quoted = (f'"{requirement}"', f"'{requirement}'")
        places = [at for at, line in enumerate(lines) if line.split("#")[0].count(quoted[0]) + line.count(quoted[1])]
        if len(places) != times:
            yield Problem(short, places[0] + 1 if places else 1, f"{requirement} does not stand on a line of its own")
        for at in places:
            if len(_STRINGS.findall(lines[at].split("#")[0])) > 1:
                yield Problem(short, at + 1, f"{requirement} shares its line: each requirement has its own reason")
            elif not has_reason(lines, at):
                yield Problem(short, at + 1, f"{requirement} has no reason: say in a comment what it is for")
            if not _BOUND.search(requirement):
                yield Problem(short, at + 1, f"{requirement} has no lower bound: >= what it was tested with, or ==")


def check_requirements(root: Path) -> Iterator[Problem]:
    """Reasons, pins and digests in requirements files."""
    for path in sorted((root / "tools").glob("*requirements*.txt")):
        short = path.relative_to(root)
        lines = path.read_text(encoding="utf-8").splitlines()
        for at, line in enumerate(lines):
            if not re.match(r"[A-Za-z0-9]", line):
                continue
            name = re.split(r"[^A-Za-z0-9._-]", line)[0]
            end = at
            while lines[end].endswith("\\") and end + 1 < len(lines):
                end += 1
            entry = " ".join(lines[at : end + 1])
            if not has_reason(lines, at):
                yield Problem(short, at + 1, f"{name} has no reason: say in a comment what it is for")
            if "==" not in line or "--hash=sha256:" not in entry:
                yield Problem(short, at + 1, f"{name} is not pinned: a version with == and its --hash=sha256:")


# Locked builds


def shell_calls(text: str) -> Iterator[tuple[int, str]]:
    """Each command of a Makefile or a script, with the line that it begins on. Comments are none."""
    start, whole = 1, ""
    for number, line in enumerate(text.splitlines(), 1):
        whole = f"{whole} {line}" if whole else line
        if not whole.endswith("\\"):
            if not whole.lstrip().startswith("#"):
                for call in re.split(r"&&|\|\||[;|]", whole.split("##")[0]):
                    yield start, call
            whole = ""
        else:
            whole = whole.removesuffix("\\")
        if not whole:
            start = number + 1


def python_calls(text: str) -> Iterator[tuple[int, list[str]]]:
    """The words of every list, tuple and call: strings, and what is put behind a folder (``bin / "maturin"``)."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.List, ast.Tuple)):
            parts = node.elts
        elif isinstance(node, ast.Call):
            parts = node.args
        else:
            continue
        words = [part.right if isinstance(part, ast.BinOp) else part for part in parts]
        yield (
            node.lineno,
            [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)],
        )


def unlocked(words: list[str]) -> str | None:
    """The call in ``words`` that resolves dependencies and has no ``--locked``, if there is one."""
    for tool, resolving in LOCKED.items():
        if tool in words:
            call = next((word for word in words[words.index(tool) + 1 :] if word in resolving), None)
            if call and "--locked" not in words:
                return f"{tool} {call}"
    return None


def check_locked(root: Path) -> Iterator[Problem]:
    """Calls of cargo and maturin in the Makefile, in .ci and in Python."""
    scripts = [path for path in sorted((root / ".ci").glob("*")) if path.is_file()] if (root / ".ci").is_dir() else []
    for path in [root / "Makefile", *scripts]:
        for number, call in shell_calls(path.read_text(encoding="utf-8")):
            words = [word.strip("\"'@()").rpartition("/")[2] for word in call.replace("$(CARGO)", "cargo").split()]
            if found := unlocked(words):
                yield Problem(path.relative_to(root), number, f"{found} without --locked")
    for path in files_named(root, r".*\.py"):
        text = path.read_text(encoding="utf-8")
        for number, words in python_calls(text) if any(tool in text for tool in LOCKED) else ():
            if found := unlocked(words):
                yield Problem(path.relative_to(root), number, f"{found} without --locked")


# Crates that are built once

EXTENSION: Final = "rust/kvpool-py/Cargo.toml"


def features(root: Path, *of: str) -> dict[str, str]:
    """The features of every crate that a build needs, as cargo names both."""
    command = ["cargo", "tree", "--locked", "--prefix", "none", "--format", "{p};{f}", *of]
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    found: dict[str, set[str]] = {}
    for line in told.splitlines():
        crate, _, has = line.removesuffix(" (*)").partition(";")
        found.setdefault(crate, set()).add(has)
    return {crate: " or ".join(sorted(has)) for crate, has in found.items()}


def compared(extension: dict[str, str], tests: dict[str, str]) -> Iterator[Problem]:
    """Crates that two builds need, and have with other features."""
    for crate in sorted(extension.keys() & tests.keys()):
        if extension[crate] != tests[crate] and not crate.startswith("kvpool-py "):
            said = f"[{extension[crate]}] as the feature as-tested has it, [{tests[crate]}] as the tests do"
            yield Problem(Path(EXTENSION), 1, f"{crate} is built twice: {said}")


def check_built_once(root: Path) -> Iterator[Problem]:
    """Crates that make demo and make test both build, but not alike."""
    if (root / EXTENSION).exists():
        extension = features(root, "--edges", "no-dev", "--package", "kvpool-py", "--features", "as-tested")
        yield from compared(extension, features(root))


def check(root: Path) -> list[Problem]:
    """All problems of a checkout."""
    checks = (check_rust, check_python, check_requirements, check_locked, check_built_once)
    return [problem for check in checks for problem in check(root)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check that every dependency has a reason and every build is locked.")
    parser.add_argument("root", type=Path, nargs="?", default=ROOT)
    given = parser.parse_args(arguments)
    problems = check(given.root.resolve())
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
