"""The tables of docs/eviction-study.md, section D: every policy on every trace, in both forms.

    tools/eviction_study.py TRACES [--seeds 1-5] [--sizes 1,2,5] [--work FOLDER] [--keep results.jsonl] > tables.md

TRACES is a folder with traces and with ``families.py``, which makes workload families of them. What the policies were
tuned on, seed 1 of the families and a third of the sessions of each trace, is left out of the tables unless
``--tuning`` asks for it alone. A file that ``--keep`` names is added to, and what is in it already is not run again.
Two hours on two cores for everything.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZES = "1,2,3,5,7,10,15,20,30,50"
BASELINES = ("lru", "arc", "s3-fifo", "2q")
POLICIES = (*BASELINES, "adaptive", "hazard")
TOLD = ("hazard+finish", "hazard+shuffled", "hazard-")
#: Traces, and whether they say how requests ended.
TRACES = {"conversation_trace.jsonl": False, "agentic_s120.jsonl.gz": False, "agentic_c128.jsonl.gz": True}

Key = tuple[str, str, str]
Job = tuple[str, Path, list[str], tuple[str, ...]]


def jobs(traces: Path, work: Path, seeds: list[int], tuning: bool) -> list[Job]:
    """What to run: a name, a file, arguments and policies."""
    found = []
    for name, says in TRACES.items():
        if (traces / name).exists():
            part = "tune" if tuning else "rest"
            more = TOLD if says else ("hazard-",)
            found.append((name.split(".")[0], traces / name, ["--part", part], (*POLICIES, *more)))
            if not tuning:
                found.append((name.split(".")[0] + ", all", traces / name, [], (*POLICIES, *more)))
    for seed in seeds:
        folder = work / f"seed{seed}"
        if not folder.exists():
            families = [sys.executable, str(traces / "families.py"), str(folder), "--seed", str(seed)]
            subprocess.run(families, check=True, stdout=sys.stderr)
        found += [(f"{path.stem} {seed}", path, [], POLICIES) for path in sorted(folder.glob("*.jsonl"))]
    return found


def run(binary: Path, options: argparse.Namespace) -> dict[Key, list[float]]:
    """Runs what is not in the kept file, and returns hits by trace, form and policy."""
    results: dict[Key, list[float]] = {}
    keep = Path(options.keep) if options.keep else None
    if keep is not None and keep.exists():
        for line in keep.read_text().splitlines():
            row = json.loads(line)
            results[row["trace"], row["form"], row["policy"]] = row["hits"]
    lock = threading.Lock()

    def one(job: Job) -> None:
        name, path, arguments, policies = job
        for form in options.forms.split(","):
            missing = [policy for policy in policies if (name, form, policy) not in results]
            if not missing:
                continue
            asked = ["--sizes", options.sizes, "--forms", form, "--policies", ",".join(missing)]
            command = ["nice", "-n", "10", binary, *arguments, *asked, path]
            ran = subprocess.run(command, check=True, capture_output=True, text=True)
            with lock:
                for row in map(json.loads, ran.stdout.splitlines()):
                    row["trace"] = name
                    results[name, row["form"], row["policy"]] = row["hits"]
                    if keep is not None:
                        with keep.open("a") as kept:
                            kept.write(json.dumps(row) + "\n")
                print(name, form, file=sys.stderr)

    with tempfile.TemporaryDirectory() as made:
        work = Path(options.work or made)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(one, jobs(options.traces, work, options.seeds, options.tuning)))
    return results


def row_of(name: str, values: list[float], sign: bool = True) -> str:
    """A row of a table."""
    return f"| {name} | " + " | ".join(f"{value:+.2f}" if sign else f"{value:.2f}" for value in values) + " |"


def regret(results: dict[Key, list[float]], form: str, policy: str, sizes: list[str]) -> list[str]:
    """Worst differences of each workload from the best of the four, and from LRU."""
    what = "worst difference over the seeds from the best of LRU, ARC, S3-FIFO and 2Q at each size, and from LRU at any"
    columns_of = " | ".join(f"{size} %" for size in sizes)
    lines = [f"\n`{policy}`, {form} form: {what}", "", f"| workload | {columns_of} | worst | over LRU, worst |"]
    lines.append("|---|" + "---|" * (len(sizes) + 2))
    worst: dict[str, list[list[float]]] = collections.defaultdict(list)
    over: dict[str, list[list[float]]] = collections.defaultdict(list)
    for name in sorted({trace for trace, of, who in results if of == form and who == policy}):
        if name.endswith(", all"):
            continue
        family = name.rsplit(" ", 1)[0]
        columns = [results[name, form, baseline] for baseline in BASELINES]
        own = results[name, form, policy]
        best = [max(hits) for hits in zip(*columns, strict=True)]
        worst[family].append([hit - most for hit, most in zip(own, best, strict=True)])
        over[family].append([hit - lru for hit, lru in zip(own, columns[0], strict=True)])
    for family, rows in worst.items():
        least = [min(column) for column in zip(*rows, strict=True)]
        lines.append(row_of(family, [*least, min(least), min(map(min, over[family]))]))
    cells = [cell for rows in worst.values() for row in rows for cell in row]
    if cells:
        behind = sum(cell < -0.5 for cell in cells)
        mean, share = sum(cells) / len(cells), 100 * behind / len(cells)
        lines.append(f"\n{len(cells)} cells: mean {mean:+.2f}, worst {min(cells):+.2f}, {behind} more than 0.5 behind")
        lines[-1] += f" ({share:.1f} %)."
        below = [cell for rows in over.values() for row in rows for cell in row if cell < -0.3]
        lines[-1] += f" Below LRU by more than 0.3: {len(below)} cells, the worst {min(below, default=0.0):+.2f}."
    return lines


def main() -> None:
    """Runs the study and prints its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, help="folder of the traces and of families.py")
    parser.add_argument("--seeds", default="2-5", help="of the families: 2-5 (1 is what was tuned on)")
    parser.add_argument("--sizes", default=SIZES, help="per cent of the unique blocks")
    parser.add_argument("--forms", default="pool,stream")
    parser.add_argument("--work", help="folder for the families; a temporary one")
    parser.add_argument("--keep", help="file of results, which is added to")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tuning", action="store_true", help="only what was tuned on")
    options = parser.parse_args()
    first, _, last = ("1" if options.tuning else options.seeds).partition("-")
    options.seeds = list(range(int(first), int(last or first) + 1))
    cargo = ["cargo", "build", "--locked", "--release", "-p", "kvpool-replay", "--example", "eviction_study"]
    subprocess.run(cargo, check=True, cwd=ROOT, stdout=sys.stderr)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    results = run(target / "release" / "examples" / "eviction_study", options)
    sizes = options.sizes.split(",")
    for name in sorted({trace for trace, _, _ in results if not re.search(r" \d+$", trace)}):
        for form in options.forms.split(","):
            print(f"\n{name}, {form} form, block hits in per cent\n\n| | {' % | '.join(sizes)} % |")
            print("|---|" + "---|" * len(sizes))
            for policy in (*POLICIES, *TOLD):
                if (name, form, policy) in results:
                    print(row_of(policy, results[name, form, policy], sign=False))
    for policy in ("adaptive", "hazard"):
        for form in options.forms.split(","):
            print("\n".join(regret(results, form, policy, sizes)))


if __name__ == "__main__":
    main()
