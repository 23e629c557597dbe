#!/usr/bin/env python3
"""Compares drivers by the planted defects (mutants) that each of them finds. A driver is a program that
makes random calls and checks the answers.

    python tools/race.py                          # every driver over some of the mutants; half an hour
    python tools/race.py --drivers lab --each 50
    python tools/race.py --report                 # tables of the results so far
    python tools/race.py --list                   # the mutants as JSON, without a build

`tools/plant.py` plants all mutants in a copy of the sources (target/race/tree), and one build contains
them all. First every driver runs without a mutant and must pass. Then each driver runs once with each
mutant of the code that it tests. If the driver fails, crashes, or does not end, it has killed the
mutant. Results are appended to target/race/results.jsonl, and a later run skips existing results.
Remove that file after a change of a driver.

Exit code 0: the laboratory (`lab/`) killed every mutant that it ran with and that another driver
killed. 1: it missed such a mutant. 2: bad usage, a failed build, or a driver that fails without a
mutant. 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # the folder tools/ contains a folder named vllm

from tools import fuzz, plant  # noqa: E402
from tools.test_mutants import Copy, MutantError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Largest number of bytes of memory that a driver may use, because a mutant may allocate without end.
MOST_MEMORY: Final = 4 << 30
#: Settings of proptest: every run has the same random cases, and they are neither shrunk nor stored.
ENVIRONMENT: Final = {
    "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1",
    "PROPTEST_MAX_SHRINK_ITERS": "0",
    "PROPTEST_RNG_SEED": "1",
    "RUST_BACKTRACE": "0",
}


@dataclass(frozen=True)
class Driver:
    """A program that makes random calls on a subject (a pool or a manager), and fails if an answer is
    wrong.
    """

    name: str
    subjects: tuple[str, ...]
    #: Folder of the driver's crate in the copy of the sources, and name of its program or test binary.
    crate: str
    binary: str
    #: Command-line arguments. `{seconds}`, `{seed}` and `{tree}` are replaced. For a test binary they
    #: are names of tests.
    arguments: tuple[str, ...]
    #: Number of operations that a model runs before it ends.
    operations: int = 0
    seeds: int = 1

    @property
    def is_test(self) -> bool:
        return "{seed}" not in self.arguments

    def is_in(self, tree: Path) -> bool:
        """Whether the driver exists in a copy of the sources."""
        place = tree / self.crate / (f"tests/{self.binary}" if self.is_test else "Cargo.toml")
        return place.exists() or place.with_suffix(".rs").exists()

    def command(self, program: str, tree: Path, seconds: float, seed: int) -> list[str]:
        """Returns the full command that runs the driver once."""
        filled = [one.format(seconds=seconds, seed=seed, tree=tree) for one in self.arguments]
        return [program, *filled, *(("--test-threads=1", "--quiet") if self.is_test else ())]


def fuzzer(target: str, *subjects: str) -> Driver:
    """Returns the driver that runs a fuzz target with random inputs, starting from the committed
    corpus.
    """
    corpus = f"{{tree}}/fuzz/corpus/{target}"
    options = f"random {target} --seconds {{seconds}} --seed {{seed}} --corpus {corpus}".split()
    return Driver(f"fuzz {target}", subjects, "fuzz", "kvpool-fuzz", tuple(options))


def laboratory(profile: str, *subjects: str, more: str = "") -> Driver:
    """Returns the driver that runs the laboratory with one of its profiles."""
    options = f"{profile} --seconds {{seconds}} --seed {{seed}} {more}".split()
    return Driver(f"lab {profile}", subjects, "lab", "kvpool-lab", tuple(options), seeds=3)


POOLS: Final = ("pool", "manager")
DRIVERS: Final = (
    fuzzer("pool", "pool"),
    fuzzer("manager", "manager"),
    Driver("manager_tables", ("manager",), "rust/kvpool", "manager_tables", ("every_request",), 200_000),
    Driver("evidence", POOLS, "rust/kvpool", "it", ("evidence::digest::", "evidence::scrubs::")),
    Driver("evictors", ("pool",), "rust/kvpool", "evictors", (), 2_000),
    Driver("explain", ("pool",), "rust/kvpool-observe", "it", ("the_reason_is",)),
    Driver("journals", POOLS, "rust/kvpool-journal", "journals", ("bit_by_bit",)),
    laboratory("pool", "pool"),
    laboratory("manager", "manager"),
    laboratory("vllm", "vllm"),
    laboratory("soak", *POOLS, more="--round 2000 --blocks 512"),
)


@dataclass(frozen=True)
class Run:
    """The outcome of one run of a driver with one mutant (planted defect) enabled."""

    key: str
    driver: str
    seed: int
    #: "survived", "killed" or "hang"; a hang counts as killed.
    outcome: str
    seconds: float
    #: Beginning of the message with which the driver failed.
    found: str


class Race:
    """Plants mutants, builds the drivers, and runs them."""

    def __init__(self, work: Path, console: Console, seconds: float) -> None:
        self.work, self.console, self.seconds = work, console, seconds
        self.copy = Copy(ROOT, work / "tree")
        self.programs: dict[tuple[str, str], str] = {}
        self.mutants: list[plant.Mutant] = []

    def cargo(self, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
        """Runs cargo in the copy of the sources. Returns the exit code, cargo's messages, and its text
        of errors.
        """
        command = [
            fuzz.CARGO,
            *arguments,
            "--locked",
            "--message-format=json",
            "--target-dir",
            str(self.work / "build"),
        ]
        done = subprocess.run(command, cwd=self.copy.tree, capture_output=True, text=True)
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return done.returncode, messages, done.stderr[-3000:]

    def plant(self) -> None:
        """Plants all mutants that compile. Stores the lines of the others, so that the next call plants
        none there. Then unchanged files keep their modification times, and are not built again.
        """
        packages = [word for crate in plant.CRATES for word in ("-p", crate)]
        note = self.work / "left_out.json"
        left_out = (
            frozenset((file, line) for file, line in json.loads(note.read_text()))
            if note.exists()
            else frozenset()
        )
        while True:
            files, self.mutants = plant.plant(ROOT, left_out)
            self.copy.refresh(files)
            code, messages, errors = self.cargo("check", "--keep-going", *packages)
            if code == 0:
                break
            wrong = [one["message"] for one in messages if one.get("message", {}).get("level") == "error"]
            spans = {
                (span["file_name"].removeprefix("rust/"), line)
                for message in wrong
                for span in message["spans"]
                for line in range(span["line_start"], span["line_end"] + 1)
            }
            more = spans & {(mutant.file, mutant.line) for mutant in self.mutants}
            if not more:
                texts = "\n".join(message["rendered"] for message in wrong[:5])
                raise MutantError(f"the copy does not build:\n{texts or errors}")
            left_out |= more
            note.write_text(json.dumps(sorted(left_out)))
            self.console.print(f"{len(left_out)} lines left out, whose mutants do not compile")

    def build(self, drivers: Iterable[Driver]) -> None:
        """Builds the drivers, first the tests and then the programs. cargo builds the crates with other
        features for programs, so a single build is not possible.
        """
        for tests in (True, False):
            options = ["test", "--no-run"] if tests else ["build"]
            for driver in (chosen := [driver for driver in drivers if driver.is_test == tests]):
                options += [
                    "-p",
                    package(self.copy.tree / driver.crate),
                    "--test" if tests else "--bin",
                    driver.binary,
                ]
            if not chosen:
                continue
            code, messages, errors = self.cargo(
                *options, "--config", "profile.dev.package.kvpool-fuzz.opt-level=1"
            )
            if code:
                wrong = (
                    one["message"]["rendered"]
                    for one in messages
                    if one.get("message", {}).get("level") == "error"
                )
                raise MutantError(f"the drivers do not build:\n{''.join(wrong) or errors}")
            for one in messages:
                if one.get("executable"):
                    crate = str(Path(one["manifest_path"]).parent.relative_to(self.copy.tree))
                    self.programs[crate, one["target"]["name"]] = one["executable"]

    def run(self, driver: Driver, number: int, key: str, seed: int) -> Run:
        """Runs a driver with one mutant enabled."""
        most = int(self.seconds * 8 + 10)

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_CPU, (most, most))
            resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        command = driver.command(
            self.programs[driver.crate, driver.binary], self.copy.tree, self.seconds, seed
        )
        environment = {
            **os.environ,
            **ENVIRONMENT,
            "KVPOOL_MUTANT": str(number),
            "PROPTEST_RNG_SEED": str(seed),
        }
        environment["KVPOOL_MODEL_OPERATIONS"] = str(driver.operations)
        start = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=self.copy.tree / driver.crate,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=most * 6,
                preexec_fn=limit,
            )
            code, output = done.returncode, done.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired:
            code, output = -9, ""
        outcome = "survived" if code == 0 else "hang" if code in {-9, -24} else "killed"
        found = shorten(output) if outcome == "killed" else ""
        return Run(key, driver.name, seed, outcome, round(time.monotonic() - start, 2), found)


def package(folder: Path) -> str:
    """Returns the name of the crate in a folder."""
    text = (folder / "Cargo.toml").read_text()
    return next(line.split('"')[1] for line in text.splitlines() if line.startswith("name = "))


def shorten(output: str) -> str:
    """Returns the message of a driver's failure as one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    start = next((at + 1 for at, line in enumerate(lines) if " panicked at " in line), 0)
    wanted = [
        line for line in lines[start : start + 3] if not line.startswith(("running", "note:", "Test failed"))
    ]
    return " ".join(wanted)[:160]


def sample(mutants: list[plant.Mutant], each: int) -> list[plant.Mutant]:
    """Returns at most `each` mutants of every subject (pool or manager), in the order of their hashes."""
    chosen = list[plant.Mutant]()
    for subject in plant.SOURCES:
        chosen += sorted((one for one in mutants if one.subject == subject), key=lambda one: one.key)[:each]
    return sorted(chosen, key=lambda one: one.key)


def read(path: Path) -> list[Run]:
    return [Run(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def report(mutants: list[plant.Mutant], runs: list[Run]) -> tuple[Table, list[plant.Mutant]]:
    """Returns a table with the number of mutants that each driver kills. Also returns the mutants that
    the laboratory misses although another driver kills them.
    """
    ran, kills = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for run in runs:
        ran[run.driver].add(run.key)
        if run.outcome != "survived":
            kills[run.driver].add(run.key)
    labs = {driver.name for driver in DRIVERS if driver.crate == "lab"}
    every = set(ran)
    shown = Table("subject", "driver", "mutants", "killed", "killed by no other")
    missed = list[plant.Mutant]()
    for subject in plant.SOURCES:
        keys = {mutant.key for mutant in mutants if mutant.subject == subject}

        def killed(names: set[str], keys: set[str] = keys) -> set[str]:
            return set[str]().union(*(kills[name] & keys for name in names))

        for driver in DRIVERS:
            if mine := ran[driver.name] & keys:
                only = killed({driver.name}) - killed(every - {driver.name})
                shown.add_row(
                    subject, driver.name, *map(str, (len(mine), len(killed({driver.name})), len(only)))
                )
        by_lab, by_old = killed(every & labs), killed(every - labs)
        rows = {"both": by_lab & by_old, "old": by_old - by_lab, "laboratory": by_lab - by_old}
        rows["neither"] = keys & set[str]().union(*ran.values()) - by_lab - by_old
        for name, those in rows.items():
            shown.add_row(subject, f"[bold]{name}[/]", "", str(len(those)), "")
        tried = set[str]().union(*(ran[name] for name in labs))
        missed += [mutant for mutant in mutants if mutant.key in rows["old"] & tried]
    return shown, missed


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--drivers", default="", help="parts of drivers' names, separated by commas (default: all)"
    )
    parser.add_argument(
        "--subjects",
        default=",".join(plant.SOURCES),
        help=f"subjects, separated by commas: {', '.join(plant.SOURCES)}",
    )
    parser.add_argument("--each", type=int, default=250, help="mutants of each subject (default 250)")
    parser.add_argument(
        "--seconds", type=float, default=2, help="seconds of a run without a failure (default 2)"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants as JSON, and end")
    parser.add_argument(
        "--report", action="store_true", help="print the tables of the results so far, and end"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "target" / "race", help="folder of the copy")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    if options.list:
        mutants = plant.plant(ROOT)[1]
        print(json.dumps([{**asdict(mutant), "half": mutant.half} for mutant in mutants], indent=0))
        return 0
    race = Race(options.work, console, options.seconds)
    wanted = [name for name in options.drivers.split(",") if name]
    drivers = [one for one in DRIVERS if not wanted or any(name in one.name for name in wanted)]
    drivers = [one for one in drivers if one.is_in(ROOT)]
    if not drivers:
        parser.error(f"no driver {options.drivers}: there are {', '.join(driver.name for driver in DRIVERS)}")
    results = options.work / "results.jsonl"
    try:
        if not options.report:
            race.plant()
            race.build(drivers)
            chosen = sample(
                [one for one in race.mutants if one.subject in options.subjects.split(",")], options.each
            )
            race_all(race, drivers, chosen, results)
        else:
            chosen = sample(plant.plant(ROOT)[1], options.each)
    except (MutantError, OSError) as error:
        console.print(str(error), markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        return 130
    table, missed = report(chosen, read(results))
    console.print(table)
    for mutant in missed:
        print(f"{mutant.number} {mutant.half} {mutant.file}:{mutant.line} {mutant.kind}: {mutant.text}")
    return int(bool(missed))


def race_all(race: Race, drivers: list[Driver], mutants: list[plant.Mutant], results: Path) -> None:
    """Runs each driver with the mutants of its subject. Skips runs that already have a result."""
    for driver in drivers:
        control = race.run(driver, 0, "", 1)
        race.console.print(f"{driver.name}: {control.outcome}, {control.seconds} s without a mutant")
        if control.outcome != "survived":
            raise MutantError(f"{driver.name} fails without a mutant: {control.found}")
    ran = {(run.key, run.driver, run.seed) for run in read(results)}
    with results.open("a") as file:
        for mutant in mutants:
            for driver in (one for one in drivers if mutant.subject in one.subjects):
                for seed in range(1, driver.seeds + 1):
                    if (mutant.key, driver.name, seed) not in ran:
                        run = race.run(driver, mutant.number, mutant.key, seed)
                        print(json.dumps(asdict(run)), file=file, flush=True)


if __name__ == "__main__":
    sys.exit(main())
