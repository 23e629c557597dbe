#!/usr/bin/env python3
"""Lines of the core that Rust tests run: a table by file, and the lines that none runs.

    python tools/coverage.py                     # fails below 95 %
    python tools/coverage.py --missing           # which lines
    python tools/coverage.py --fuzz              # with the committed corpora of fuzz/, too

Counts every line of kvpool and kvpool-hash that has code, and of what makes an evictor of an order in
kvpool-policies, over the tests of the four, where orders meet their models, too, and of kvpool-journal, where its
journals are replayed (examples in docs cannot be counted on stable Rust); tests within src are not counted as lines.
rustc counts. What reads the counts:
LLVM_PROFDATA and LLVM_COV of the same LLVM, else those of rustup's component llvm-tools, which is added if it is
missing, else, where there is no rustup, the programs of llvm_profparser from crates.io.

Exit code 0: enough lines are run. 1: too few, or a test failed. 2: bad usage, or nothing to read the counts with. 130:
Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parent.parent
RUST: Final = ROOT / "rust"
#: The core, what requests are over it, what tells it blocks apart, and what every order needs in a pool.
SOURCES: Final = (
    *(RUST / name / "src" for name in ("kvpool", "kvpool-hash")),
    *(RUST / "kvpool-policies" / "src" / name for name in ("closed.rs", "ranks", "recency.rs")),
)
CARGO: Final = os.environ.get("CARGO", "cargo")
RUSTC: Final = os.environ.get("RUSTC", "rustc")
PROFPARSER: Final = "0.15.0"
#: Lines are counted, not times: model tests long enough to reach what they reach.
OPERATIONS: Final = {"KVPOOL_MODEL_OPERATIONS": "50000"}


class CoverageError(Exception):
    """What is lacking, or broke."""


@dataclass(frozen=True)
class Readers:
    """Programs that read counts: LLVM's two, or the two of llvm_profparser."""

    profdata: Path
    cov: Path
    llvm: bool


def said(command: list[str], *, check: bool = True) -> str:
    """What a command prints."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise CoverageError(f"{' '.join(command[:4])} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def find_readers(work: Path, say: Console) -> Readers:
    """Finds the programs, or gets them."""
    named = [os.environ.get(name) for name in ("LLVM_PROFDATA", "LLVM_COV")]
    if named[0] and named[1]:
        return Readers(Path(named[0]), Path(named[1]), llvm=True)
    host = re.search(r"^host: (.*)$", said([RUSTC, "-vV"]), re.MULTILINE)
    folder = Path(said([RUSTC, "--print", "sysroot"]).strip()) / "lib" / "rustlib" / (host[1] if host else "") / "bin"
    readers = Readers(folder / "llvm-profdata", folder / "llvm-cov", llvm=True)
    if readers.cov.is_file():
        return readers
    if shutil.which("rustup"):
        say.print("adding rustup's component llvm-tools")
        said(["rustup", "component", "add", "llvm-tools"], check=False)
        if readers.cov.is_file():
            return readers
    programs = work / "tools" / "bin"
    if not (programs / "cov").is_file():
        say.print("no llvm-tools: building llvm_profparser from crates.io")
        said([CARGO, "install", "--locked", "--quiet", "--root", str(work / "tools"), f"llvm_profparser@{PROFPARSER}"])
    return Readers(programs / "profparser", programs / "cov", llvm=False)


@dataclass(frozen=True)
class Test:
    """A test binary, and the folder of its package, which it expects to run in."""

    executable: Path
    folder: Path


def build(work: Path, packages: list[str]) -> list[Test]:
    """Builds tests with counters."""
    flags = f"{os.environ.get('RUSTFLAGS', '')} -Cinstrument-coverage".strip()
    # What build scripts and macros count goes nowhere.
    environment = {**os.environ, "RUSTFLAGS": flags, "LLVM_PROFILE_FILE": os.devnull}
    arguments = [argument for package in packages for argument in ("-p", package)]
    command = [CARGO, "test", "--no-run", "--locked", "--lib", "--tests", "--message-format=json", *arguments]
    done = subprocess.run(
        [*command, "--target-dir", str(work / "build")], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise CoverageError(f"the tests do not build:\n{done.stderr[-3000:]}")
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    built = [m for m in messages if m.get("executable") and m["profile"]["test"]]
    return [Test(Path(m["executable"]), Path(m["manifest_path"]).parent) for m in built]


def run(test: Test, work: Path) -> bool:
    """Runs a test binary with its counters written."""
    profile = work / "profiles" / f"{test.executable.name}-%p.profraw"
    environment = {**OPERATIONS, **os.environ, "LLVM_PROFILE_FILE": str(profile)}
    command = [str(test.executable), "--quiet"]
    return subprocess.run(command, cwd=test.folder, env=environment, stdout=subprocess.DEVNULL).returncode == 0


def read(readers: Readers, executables: list[Path], work: Path) -> dict[Path, dict[int, int]]:
    """How often each line was run, by file."""
    profiles = sorted(str(path) for path in (work / "profiles").glob("*.profraw"))
    merged = work / "merged.profdata"
    first, *others = map(str, executables)
    if readers.llvm:
        said([str(readers.profdata), "merge", "-sparse", "-o", str(merged), *profiles])
        objects = [argument for other in others for argument in ("-object", other)]
        command = [str(readers.cov), "export", "-format=lcov", f"-instr-profile={merged}", first, *objects]
        return parse_lcov(said([*command, *map(str, SOURCES)]))
    said([str(readers.profdata), "merge", "-o", str(merged), *profiles])
    objects = [argument for executable in executables for argument in ("--object", str(executable))]
    return parse_show(said([str(readers.cov), "show", "--instr-profile", str(merged), *objects]))


def parse_lcov(text: str) -> dict[Path, dict[int, int]]:
    """Lines of an lcov file."""
    files: dict[Path, dict[int, int]] = {}
    lines: dict[int, int] = {}
    for row in text.splitlines():
        if row.startswith("SF:"):
            lines = files.setdefault(Path(row[3:]), {})
        elif row.startswith("DA:"):
            line, count = row[3:].split(",")[:2]
            lines[int(line)] = max(lines.get(int(line), 0), int(count))
    return files


def parse_show(text: str) -> dict[Path, dict[int, int]]:
    """Lines of a listing: number, count or nothing, source."""
    files: dict[Path, dict[int, int]] = {}
    lines: dict[int, int] = {}
    for row in text.splitlines():
        numbered = re.match(r" *(\d+)\| *(\d*)\|", row)
        if numbered is None:
            if row.endswith(".rs"):
                lines = files.setdefault(Path(row), {})
        elif numbered[2]:
            lines[int(numbered[1])] = int(numbered[2])
    return files


@dataclass(frozen=True)
class File:
    """A file's lines with code, and those that no test runs."""

    name: str
    lines: int
    missed: list[int]

    @property
    def share(self) -> float:
        """Of its lines, those that are run."""
        return 1 - len(self.missed) / self.lines if self.lines else 1.0


def counted(files: dict[Path, dict[int, int]]) -> list[File]:
    """The files of the core, by name; its tests are not counted."""
    out = []
    for path, lines in files.items():
        if not any(path.is_relative_to(source) for source in SOURCES) or path.name == "tests.rs" or not lines:
            continue
        missed = sorted(line for line, count in lines.items() if count == 0)
        out.append(File(str(path.relative_to(RUST)), len(lines), missed))
    return sorted(out, key=lambda file: file.name)


def total(files: list[File]) -> File:
    """All files as one; its missed lines are counted, not named."""
    return File("all", sum(file.lines for file in files), [0] * sum(len(file.missed) for file in files))


def ranges(lines: list[int]) -> str:
    """1, 3-5, 9."""
    runs: list[list[int]] = []
    for line in lines:
        if runs and line == runs[-1][-1] + 1:
            runs[-1].append(line)
        else:
            runs.append([line])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def table(files: list[File], *, missing: bool) -> Table:
    """One row per file, the sum at the end."""
    shown = Table("file", "lines", "missed", "run", *(["lines that no test runs"] if missing else []))
    for column in shown.columns[1:4]:
        column.justify = "right"
    for file in [*files, total(files)]:
        cells = [file.name, f"{file.lines:,}", str(len(file.missed)), f"{file.share:.1%}"]
        shown.add_row(*cells, *([ranges(file.missed) if file.name != "all" else ""] if missing else []))
    return shown


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--least", type=float, default=95.0, help="per cent of lines (default 95)")
    parser.add_argument("--missing", action="store_true", help="name the lines that no test runs")
    parser.add_argument("--fuzz", action="store_true", help="count the replay of the fuzz corpora, too")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on standard output")
    parser.add_argument("--work", type=Path, default=ROOT / "target" / "coverage", help="where tests are built")
    options = parser.parse_args(arguments)
    if not 0 <= options.least <= 100:
        parser.error("--least is a percentage, 0 to 100")
    console = Console(stderr=True)
    try:
        readers = find_readers(options.work, console)
        console.print("building the tests with counters")
        packages = ["kvpool", "kvpool-hash", "kvpool-policies", "kvpool-journal"]
        tests = build(options.work, packages + (["kvpool-fuzz"] if options.fuzz else []))
        shutil.rmtree(options.work / "profiles", ignore_errors=True)
        failed = []
        for test in tests:
            console.print(f"running {test.executable.name}", highlight=False)
            if not run(test, options.work):
                failed.append(test.executable.name)
        files = counted(read(readers, [test.executable for test in tests], options.work))
    except CoverageError as error:
        console.print(str(error), markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        return 130
    if failed:
        console.print(f"[red]These tests fail: {', '.join(failed)}[/]")
        return 1
    share = total(files).share * 100
    if options.json:
        rows = [{"file": file.name, "lines": file.lines, "missed": file.missed} for file in files]
        print(json.dumps({"run": round(share, 2), "least": options.least, "files": rows}, indent=2))
    else:
        Console().print(table(files, missing=options.missing))
    if share < options.least:
        console.print(f"[red]{share:.2f} % of the lines are run, {options.least:g} % should be[/]")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
