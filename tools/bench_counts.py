"""Counts the instructions that the pool's operations execute per block, with callgrind. The counts are
equal on every machine and do not depend on its load.

Needs valgrind. ``python tools/bench_counts.py`` builds ``benches/src/bin/counts.rs`` and prints a
table. ``--binary`` counts an existing binary, for example one that was built from an older commit.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ["cargo", "build", "--quiet", "--release", "--locked", "-p", "kvpool-benches", "--bin", "counts"]


def count(binary: Path) -> dict[str, float]:
    """Returns the number of instructions per block for each operation."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={out}",
            "--collect-atstart=no",
            "--toggle-collect=*counted_*",
            str(binary),
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            sys.exit(f"bench_counts: {' '.join(command)}: {ran.stderr[-2000:]}")
        blocks = int(ran.stdout)
        annotate = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(out)]
        table = subprocess.run(annotate, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s*([\d,]+)\s+\([^)]*\)\s+\S*counts\.rs:counts::counted_(\w+)", table, re.MULTILINE)
    return {
        name: int(total.replace(",", "")) / blocks for total, name in sorted(found, key=lambda one: one[1])
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, help="a binary to count, instead of building one")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if arguments.binary is None:
        subprocess.run(BUILD, cwd=ROOT, check=True)
    counts = count(arguments.binary or ROOT / "target/release/counts")
    if arguments.json:
        print(json.dumps(counts))
        return
    for name, each in counts.items():
        print(f"{name:<32} {each:8.1f} instructions per block")


if __name__ == "__main__":
    main()
