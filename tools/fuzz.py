#!/usr/bin/env python3
"""Builds and runs the fuzz targets of fuzz/.

    python tools/fuzz.py pool --seconds 60       # one target, or several
    python tools/fuzz.py --all --seconds 30      # every target
    python tools/fuzz.py pool --driver           # without libFuzzer: random inputs without guidance
    python tools/fuzz.py --all --merge           # writes a small fuzz/corpus with equal coverage

Stable Rust is enough: rustc generates the coverage data that libFuzzer reads, and a crate on crates.io
has the C++ sources of libFuzzer. Without a C++ compiler the driver runs instead, and a message states
that. Inputs that reach new code are stored in target/fuzz/corpus, and failing inputs in
target/fuzz/artifacts. A failure is printed as a small Rust test.

Exit code 0: no failure was found. 1: a failure was found. 2: bad usage, or a failed build. 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT: Final = Path(__file__).resolve().parent.parent
TARGETS: Final = ("free_list", "index", "pool", "manager", "trace_reader", "journal_reader", "vllm_pool")
#: Targets that test other crates than the core, and the Cargo feature that builds each.
FEATURES: Final = dict.fromkeys(("trace_reader", "journal_reader"), "readers")
# Maximum length of an input of each target, in bytes. Longer inputs make longer cases, but no new kinds
# of cases. A call of the laboratory (`lab/`) uses more bytes, and a trace or journal file is longer
# still.
LONGEST: Final = dict.fromkeys(("pool", "manager", "vllm_pool", *FEATURES), 2048)
#: Largest number of inputs of a committed corpus.
MOST_INPUTS: Final = 60
#: The compiler flags of cargo-fuzz, except those of the sanitizer. The tested crates have no unsafe
#: code that a sanitizer would check.
COVERAGE: Final = (
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
)
CARGO: Final = os.environ.get("CARGO", "cargo")


class FuzzError(Exception):
    """A build failed, or a fuzzer ended for another reason than a failure of the tested code."""


@dataclass(frozen=True)
class Outcome:
    """The result of one run of a fuzz target."""

    target: str
    fuzzer: str
    seconds: float
    runs: int | None
    found: bool
    #: Number of operations in the shrunk case, if the run found a failure.
    operations: int | None
    #: The message of the failure, followed by the case as a Rust test.
    report: str
    artifact: str | None


def cxx() -> str | None:
    """Returns the path of a C++ compiler, or ``None``."""
    named = os.environ.get("CXX")
    return named or next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)


def host() -> str:
    """Returns the default target triple of rustc."""
    rustc = os.environ.get("RUSTC", "rustc")
    output = subprocess.run([rustc, "-vV"], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    found = re.search(r"^host: (.*)$", output, re.MULTILINE)
    if found is None:
        raise FuzzError(f"{rustc} -vV names no host: {output}")
    return found[1]


def cargo(arguments: list[str], tree: Path, environment: dict[str, str] | None = None) -> None:
    """Runs cargo. Its output is shown only if it fails."""
    done = subprocess.run(
        [CARGO, *arguments],
        cwd=tree,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise FuzzError(f"cargo {' '.join(arguments)} failed:\n{done.stdout[-4000:]}")


def build(
    targets: list[str],
    tree: Path,
    target_dir: Path,
    *,
    driver: bool,
    environment: dict[str, str] | None = None,
) -> dict[str, list[str]]:
    """Builds targets, or the driver, from a copy of the sources. Returns the commands that run them."""
    common = [
        "build",
        "--locked",
        "--quiet",
        "--profile",
        "fuzz",
        "-p",
        "kvpool-fuzz",
        "--target-dir",
        str(target_dir),
    ]
    # Targets of the core need no features of other crates.
    features = sorted({FEATURES[target] for target in targets if target in FEATURES})
    common += ["--no-default-features"]
    if driver:
        cargo([*common, "--features", ",".join(features), "--bin", "kvpool-fuzz"], tree, environment)
        program = str(target_dir / "fuzz" / "kvpool-fuzz")
        return {target: [program, "random", target] for target in targets}
    # If cargo gets --target, the flags do not apply to build scripts and macros, which need no
    # coverage.
    triple, flags = host(), " ".join([*COVERAGE, os.environ.get("RUSTFLAGS", "")]).strip()
    bins = [argument for target in targets for argument in ("--bin", target)]
    environment = {**(environment or {}), "RUSTFLAGS": flags}
    cargo(
        [*common, "--target", triple, "--features", ",".join([*features, "libfuzzer"]), *bins],
        tree,
        environment,
    )
    return {target: [str(target_dir / triple / "fuzz" / target)] for target in targets}


def command(
    base: list[str], target: str, seconds: float, seeds: Path, work: Path, *, driver: bool
) -> list[str]:
    """Returns the full command of a run. The run reads the seed inputs, and writes new inputs to the
    work folder.
    """
    corpus, artifacts = work / "corpus" / target, work / "artifacts"
    for folder in (corpus, artifacts, seeds):
        folder.mkdir(parents=True, exist_ok=True)
    if driver:
        return [*base, "--seconds", str(seconds), "--corpus", str(seeds), "--artifacts", str(artifacts)]
    return [
        *base,
        f"-max_total_time={max(1, round(seconds))}",
        f"-max_len={LONGEST.get(target, 600)}",
        "-timeout=20",
        f"-artifact_prefix={artifacts}/",
        "-print_final_stats=1",
        str(corpus),
        str(seeds),
    ]


def run(base: list[str], target: str, seconds: float, seeds: Path, work: Path, *, driver: bool) -> Outcome:
    """Runs a target until it finds a failure or the time limit is reached."""
    start = time.monotonic()
    done = subprocess.run(
        command(base, target, seconds, seeds, work, driver=driver),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds * 3 + 120,
        check=False,
    )
    return read_outcome(target, done.stdout, done.returncode, time.monotonic() - start, driver=driver)


def read_outcome(target: str, output: str, code: int, seconds: float, *, driver: bool) -> Outcome:
    shrunk = re.search(r"shrunk to (\d+) operations:\n", output)
    # The report extends from the failure to the end of the test.
    report = re.search(
        r"^[^\n]*\n*shrunk to \d+ operations:\n.*?(?=^(?:stack|note|==|MS:)|\Z)", output, re.M | re.S
    )
    artifact = re.search(r"Test unit written to (\S+)", output)
    runs = re.search(r"stat::number_of_executed_units: (\d+)", output) or re.search(
        r"(\d+) inputs in", output
    )
    if code != 0 and not shrunk and not artifact:
        raise FuzzError(f"{target} broke with exit code {code}:\n{output[-4000:]}")
    return Outcome(
        target,
        "driver" if driver else "libFuzzer",
        round(seconds, 1),
        int(runs[1]) if runs else None,
        code != 0,
        int(shrunk[1]) if shrunk else None,
        report[0].strip() if report else "" if code == 0 else output[-2000:],
        artifact[1] if artifact else None,
    )


def merge(base: list[str], target: str, seeds: Path, work: Path) -> tuple[int, int, float]:
    """Replaces the committed corpus, the inputs with which fuzzing starts, by a small one. Returns the
    number of inputs, their bytes, and the share of the code edges that they cover.
    """
    corpus, merged, control = work / "corpus" / target, work / "merged", work / f"merge-{target}"
    corpus.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    control.unlink(missing_ok=True)
    # Count which edges of the code an input takes, and not how often. This gives a corpus of tens of
    # inputs instead of thousands.
    flags = [
        "-set_cover_merge=1",
        "-use_counters=0",
        f"-max_len={LONGEST.get(target, 600)}",
        f"-merge_control_file={control}",
    ]
    folders = [str(merged), str(seeds), str(corpus)]
    done = subprocess.run([*base, *flags, *folders], capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise FuzzError(f"the merge of {target} failed:\n{done.stderr[-4000:]}")
    features = read_control(control.read_text())
    chosen = cover(features, MOST_INPUTS)
    inputs = sorted((Path(path).read_bytes() for path in chosen), key=lambda content: (len(content), content))
    for old in seeds.iterdir():
        old.unlink()
    for number, content in enumerate(inputs):
        (seeds / f"{number:03}").write_bytes(content)
    reached = set[int]().union(*(features[path] for path in chosen))
    share = len(reached) / max(1, len(set[int]().union(*features.values())))
    return len(inputs), sum(map(len, inputs)), share


def read_control(text: str) -> dict[str, set[int]]:
    """Reads libFuzzer's control file of a merge: counts, paths, and the features (covered code) of each
    input. Returns the features by input.
    """
    lines = text.splitlines()
    paths = lines[2 : 2 + int(lines[0])]
    rows = (line.split() for line in lines if line.startswith("FT "))
    return {paths[int(row[1])]: set(map(int, row[2:])) for row in rows}


def cover(features: dict[str, set[int]], most: int) -> list[str]:
    """Chooses at most ``most`` inputs. Each round adds the input that covers the most features that are
    not covered yet. If several cover equally many, it adds the first by name.
    """
    left, chosen = set[int]().union(*features.values()), list[str]()
    while left and len(chosen) < most:
        best = max(sorted(features), key=lambda path: len(features[path] & left))
        chosen.append(best)
        left -= features[best]
    return chosen


def table(outcomes: list[Outcome]) -> Table:
    shown = Table("target", "by", "seconds", "inputs", "found")
    for outcome in outcomes:
        runs = f"{outcome.runs:,}" if outcome.runs is not None else "?"
        found = f"[red]yes[/], {outcome.operations} operations" if outcome.found else "nothing"
        shown.add_row(outcome.target, outcome.fuzzer, f"{outcome.seconds:.0f}", runs, found)
    return shown


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(TARGETS)}")
    parser.add_argument("--all", action="store_true", help="every target")
    parser.add_argument("--seconds", type=float, default=60, help="seconds for each target (default 60)")
    parser.add_argument("--driver", action="store_true", help="use random inputs instead of libFuzzer")
    parser.add_argument("--merge", action="store_true", help="only replace fuzz/corpus by a small corpus")
    parser.add_argument("--json", action="store_true", help="the outcomes as JSON on standard output")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "target" / "fuzz", help="folder for inputs and failures"
    )
    parser.add_argument(
        "--target-dir", type=Path, default=None, help="target folder of cargo (default target/)"
    )
    options = parser.parse_args(arguments)
    targets = list(TARGETS) if options.all else options.targets
    if not targets or (unknown := sorted(set(targets) - set(TARGETS))):
        parser.error(f"no target {', '.join(unknown)}" if targets else "name a target, or --all")
    if options.seconds <= 0:
        parser.error("--seconds must be above 0")
    console = Console(stderr=True)
    driver = options.driver
    if not driver and cxx() is None:
        console.print("[yellow]No C++ compiler: libFuzzer is skipped, the driver runs without coverage.[/]")
        driver = True
    if driver and options.merge:
        parser.error("--merge needs libFuzzer, which needs a C++ compiler")
    target_dir = options.target_dir or Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    console.print(f"building {', '.join(targets)}")
    outcomes: list[Outcome] = []
    try:
        programs = build(targets, ROOT, target_dir, driver=driver)
        if options.merge:
            for target in targets:
                seeds = ROOT / "fuzz" / "corpus" / target
                seeds.mkdir(parents=True, exist_ok=True)
                count, size, share = merge(programs[target], target, seeds, options.work)
                console.print(f"{target}: {count} inputs, {size:,} bytes, {share:.1%} of the edges reached")
            return 0
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("", total=len(targets))
            for target in targets:
                progress.update(bar, description=f"{target}, {options.seconds:g} s")
                seeds = ROOT / "fuzz" / "corpus" / target
                outcomes.append(
                    run(programs[target], target, options.seconds, seeds, options.work, driver=driver)
                )
                progress.advance(bar)
    except FuzzError as error:
        console.print(str(error), markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    else:
        for outcome in outcomes:
            if outcome.found:
                print(f"{outcome.target}: {outcome.artifact or ''}\n{outcome.report}\n")
        console.print(table(outcomes))
    return int(any(outcome.found for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
