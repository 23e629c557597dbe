#!/usr/bin/env python3
"""Plants defects, and checks that the model tests and the fuzzer find and shrink each of them.

    python tools/test_mutants.py                          # every defect; takes minutes, mostly for builds
    python tools/test_mutants.py lost-unlink --json
    python tools/test_mutants.py --list

A defect replaces a text that must occur exactly once in the sources. So a change of the sources cannot
silently remove a defect. It is planted in a copy (target/mutants/tree), and all defects share one build
folder. First the copy without a defect must pass everything. Then every test that should find a defect
must fail within its time limit. The fuzzer starts from the committed corpus. It must find the defect
within its own limit, and shrink it to at most 12 operations, which are printed as a Rust test.

Exit code 0: every defect was found by all that should find it. 1: a defect survived, or the sources
themselves fail. 2: bad usage, a defect that cannot be planted, or a failed build. 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # the folder tools/ contains a folder named vllm

from tools import fuzz  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_OPERATIONS: Final = 12
#: Compiler settings for quick builds. Each defect is built anew and then runs for at most a minute.
QUICK_BUILDS: Final = {
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "CARGO_PROFILE_FUZZ_OPT_LEVEL": "1",
    "CARGO_PROFILE_FUZZ_DEBUG": "0",
}
#: The parts of the workspace that are copied before defects are planted.
COPIED: Final = ("Cargo.toml", "Cargo.lock", "clippy.toml", "rust", "benches", "fuzz", "lab", "cuda")


class MutantError(Exception):
    """A defect cannot be planted, or the copy does not build."""


@dataclass(frozen=True)
class Replacement:
    """A text that occurs exactly once in a file of a crate, and the text that replaces it."""

    #: Path of the file below rust/, without the src folder of the crate, for example
    #: kvpool/pool/mod.rs.
    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Defect:
    """A planted defect, and the tests that should find it."""

    name: str
    what: str
    replacements: tuple[Replacement, ...]
    #: Test binaries of kvpool and of the laboratory (`lab/`). Each must fail if the defect is planted.
    tests: tuple[str, ...]
    #: Name of the fuzz target; empty if no fuzz target checks the code that the defect changes.
    target: str


DEFECTS: Final = tuple(
    Defect(
        one["name"],
        one["what"],
        tuple(Replacement(**replacement) for replacement in one["replacements"]),
        tuple(one["tests"]),
        one["target"],
    )
    for one in tomllib.loads((ROOT / "tools" / "defects.toml").read_text(encoding="utf-8"))["defects"]
)


@dataclass
class Result:
    """The result of the tests and the fuzzer with one defect, or with the unmodified sources."""

    name: str
    #: Seconds until each test failed. None if the test passed or was still running at its time limit.
    tests: dict[str, float | None] = field(default_factory=dict)
    target: str = ""
    fuzzer: str = ""
    #: Seconds until the fuzzer had found and shrunk the defect.
    fuzzer_seconds: float | None = None
    operations: int | None = None
    report: str = ""

    @property
    def found(self) -> bool:
        """Returns whether all tests found the defect and the fuzzer's case is small enough."""
        by_tests = bool(self.tests) and all(seconds is not None for seconds in self.tests.values())
        is_small = self.operations is not None and self.operations <= MOST_OPERATIONS
        return by_tests and (is_small or not self.target)

    @property
    def clean(self) -> bool:
        """Returns whether no test and no fuzzer found a failure."""
        return all(seconds is None for seconds in self.tests.values()) and self.fuzzer_seconds is None


class Copy:
    """The copy of the sources in which defects are planted."""

    def __init__(self, source: Path, tree: Path) -> None:
        self.source, self.tree = source, tree

    def refresh(self, planted: Mapping[Path, str] = MappingProxyType({})) -> None:
        """Makes the copy equal to the sources, with the changed texts of `planted` instead of the
        originals.

        Files that are already equal are not written, so cargo does not rebuild them.
        """
        wanted = set[Path]()
        for name in COPIED:
            top = self.source / name
            files = [top] if top.is_file() else sorted(path for path in top.rglob("*") if path.is_file())
            for path in files:
                relative = path.relative_to(self.source)
                if "target" not in relative.parts:
                    wanted.add(relative)
                    self.write(relative, planted[path].encode() if path in planted else path.read_bytes())
        for path in list(self.tree.rglob("*")):
            if path.is_file() and path.relative_to(self.tree) not in wanted:
                path.unlink()  # regression files that a failed test has written

    def write(self, relative: Path, content: bytes) -> None:
        """Writes a file, unless it already has this content."""
        path = self.tree / relative
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def plant(self, defect: Defect) -> None:
        """Makes a fresh copy with one defect in it."""
        self.refresh()
        for file, text in planted(defect, self.source).items():
            self.write(file, text.encode())


def planted(defect: Defect, source: Path) -> dict[Path, str]:
    """Returns the texts of the files that a defect changes, after the change."""
    files: dict[Path, str] = {}
    for replacement in defect.replacements:
        crate, _, below = replacement.file.partition("/")
        file = Path("rust", crate, "src", below)
        text = files[file] if file in files else (source / file).read_text()
        count = text.count(replacement.old)
        if count != 1:
            raise MutantError(f"{defect.name}: {file} has {replacement.old!r} {count} times, and not once")
        files[file] = text.replace(replacement.old, replacement.new)
    return files


class Runner:
    """Builds the copy, and runs its tests and fuzzers."""

    def __init__(
        self, copy: Copy, work: Path, *, seconds: float, driver: bool, say: Callable[[str], None]
    ) -> None:
        self.copy, self.work, self.seconds, self.driver, self.say = copy, work, seconds, driver, say
        self.build_dir = work / "build"

    def build_tests(self, tests: tuple[str, ...]) -> dict[str, str]:
        """Builds test binaries. Returns their executables."""
        names = [argument for test in tests for argument in ("--test", test)]
        of_the_lab = any((self.copy.tree / "lab" / "tests" / f"{test}.rs").exists() for test in tests)
        crates = ["-p", "kvpool", *(("-p", "kvpool-lab") if of_the_lab else ())]
        command = [fuzz.CARGO, "test", "--no-run", "--locked", "--message-format=json", *crates, *names]
        done = subprocess.run(
            [*command, "--target-dir", str(self.build_dir)],
            cwd=self.copy.tree,
            env={**os.environ, **QUICK_BUILDS},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise MutantError(f"the copy does not build:\n{done.stderr[-4000:]}")
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found = {m["target"]["name"]: m["executable"] for m in messages if m.get("executable")}
        return {test: found[test] for test in tests}

    def run_test(self, executable: str) -> float | None:
        """Runs a test binary. Returns the seconds until it failed, or ``None`` if it did not."""
        start = time.monotonic()
        # Do not let the test shrink its failing case, because the fuzzer does that.
        environment = {**os.environ, "PROPTEST_MAX_SHRINK_ITERS": "0"}
        try:
            done = subprocess.run(
                [executable, "--quiet"],
                cwd=self.copy.tree / "rust" / "kvpool",
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self.seconds,
            )
        except subprocess.TimeoutExpired:
            return None
        # Exit code 101 means that a test failed. Other codes mean that the binary ended abnormally.
        if done.returncode not in {0, 101, -6}:
            raise MutantError(f"{executable} ended with {done.returncode}:\n{done.stdout.decode()[-2000:]}")
        return round(time.monotonic() - start, 1) if done.returncode else None

    def run_tests(self, result: Result, tests: tuple[str, ...]) -> None:
        self.say(f"{result.name}: building {', '.join(tests)}")
        executables = self.build_tests(tests)
        for test in tests:
            self.say(f"{result.name}: {test}")
            result.tests[test] = self.run_test(executables[test])

    def run_fuzzer(self, result: Result, target: str) -> None:
        """Runs a fuzz target from the committed corpus, without the inputs that earlier runs found."""
        self.say(f"{result.name}: building the fuzz target {target}")
        driver = self.driver
        programs = fuzz.build(
            [target], self.copy.tree, self.build_dir, driver=driver, environment=QUICK_BUILDS
        )
        work = self.work / "fuzz"
        shutil.rmtree(work, ignore_errors=True)
        self.say(f"{result.name}: fuzzing {target}")
        seeds = self.copy.source / "fuzz" / "corpus" / target
        outcome = fuzz.run(programs[target], target, self.seconds, seeds, work, driver=driver)
        result.target, result.fuzzer = target, outcome.fuzzer
        if outcome.found:
            result.fuzzer_seconds, result.operations = outcome.seconds, outcome.operations
            result.report = outcome.report

    def control(self, defects: tuple[Defect, ...], seconds: float) -> Result:
        """Runs all tests and fuzzers on the unmodified sources. They must not fail."""
        self.copy.refresh()
        result = Result("(none)")
        self.run_tests(result, tuple(sorted({test for defect in defects for test in defect.tests})))
        whole = self.seconds
        for target in sorted({defect.target for defect in defects if defect.target}):
            self.seconds = seconds
            self.run_fuzzer(result, target)
            self.seconds = whole
            if result.fuzzer_seconds is not None:
                break
        return result

    def try_defect(self, defect: Defect) -> Result:
        """Plants a defect, and runs the tests and the fuzzer that should find it."""
        self.copy.plant(defect)
        result = Result(defect.name)
        self.run_tests(result, defect.tests)
        if defect.target:
            self.run_fuzzer(result, defect.target)
        return result


def table(results: list[Result]) -> Table:
    shown = Table("defect", "found by model tests, s", "found by fuzzer, s", "operations after shrinking")
    for result in results:
        tests = ", ".join(
            f"{test} {'[red]not[/]' if s is None else f'{s:.1f}'}" for test, s in result.tests.items()
        )
        seconds = "-" if not result.target else "[red]not[/]"
        if result.fuzzer_seconds is not None:
            seconds = f"{result.target} {result.fuzzer_seconds:.1f}"
        operations = "[red]-[/]" if result.operations is None else str(result.operations)
        if result.operations is not None and result.operations > MOST_OPERATIONS:
            operations = f"[red]{operations}[/]"
        shown.add_row(result.name, tests, seconds, operations)
    return shown


def as_json(result: Result) -> dict[str, Any]:
    return {**asdict(result), "found": result.found}


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("defects", nargs="*", metavar="DEFECT", help="names from --list (default: all)")
    parser.add_argument("--list", action="store_true", help="name the defects, and end")
    parser.add_argument(
        "--seconds", type=float, default=60, help="seconds for each test and each fuzzer (default 60)"
    )
    parser.add_argument(
        "--control-seconds", type=float, default=20, help="seconds for fuzzers without a defect (default 20)"
    )
    parser.add_argument("--driver", action="store_true", help="random inputs instead of libFuzzer")
    parser.add_argument("--json", action="store_true", help="the results as JSON on standard output")
    parser.add_argument("--work", type=Path, default=ROOT / "target" / "mutants", help="folder of the copy")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    if options.list:
        for defect in DEFECTS:
            print(f"{defect.name:20} {defect.what}")
        return 0
    known = {defect.name: defect for defect in DEFECTS}
    if unknown := [name for name in options.defects if name not in known]:
        parser.error(f"no defect {', '.join(unknown)}: there are {', '.join(known)}")
    chosen = tuple(known[name] for name in options.defects) or DEFECTS
    driver = options.driver
    if not driver and fuzz.cxx() is None:
        console.print("[yellow]No C++ compiler: libFuzzer is skipped, the driver runs without coverage.[/]")
        driver = True
    start = time.monotonic()

    def say(phase: str) -> None:
        console.print(f"{time.monotonic() - start:6.0f} s  {phase}", markup=False, highlight=False)

    runner = Runner(
        Copy(ROOT, options.work / "tree"), options.work, seconds=options.seconds, driver=driver, say=say
    )
    try:
        control = runner.control(chosen, options.control_seconds)
        results = [runner.try_defect(defect) for defect in chosen] if control.clean else []
    except (MutantError, fuzz.FuzzError) as error:
        console.print(str(error), markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(
            json.dumps(
                {"control": as_json(control), "defects": [as_json(result) for result in results]}, indent=2
            )
        )
    else:
        for result in results:
            if result.report:
                print(f"{result.name}: {result.report}\n")
        console.print(table(results))
    if not control.clean:
        console.print(f"[red]The sources fail without any defect:[/] {control.tests} {control.report}")
        return 1
    survived = [result.name for result in results if not result.found]
    if survived:
        console.print(f"[red]Not found by all, or not small: {', '.join(survived)}[/]")
    return int(bool(survived))


if __name__ == "__main__":
    sys.exit(main())
