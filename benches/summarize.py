"""Makes a dated table of the last bench runs, with p50, p99 and the budget of each operation.

Reads criterion's samples and pytest-benchmark's JSON. ``make bench-report`` runs the benches and this
script. A sample of criterion is the mean of one batch of iterations; a sample of pytest-benchmark is
one call.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = 512  # blocks of one request in the pool benches
PROMPT_BLOCKS = 2048  # blocks of a 32,768-token prompt

# For each benchmark of criterion, by its id: the number by which the time of an iteration is divided,
# the unit, and the budget in that unit.
BUDGETS: dict[str, tuple[int, str, float | None]] = {
    "pool/store_cold": (BLOCKS, "ns/block", 40),
    "pool/store_evicting": (BLOCKS, "ns/block", None),
    "pool/hit": (BLOCKS, "ns/block", 40),
    "pool/release": (BLOCKS, "ns/block", 15),
    "pool/probe": (BLOCKS, "ns/block", None),
    "hash/sha256": (PROMPT_BLOCKS, "ns/block", 120),
    "hash/vllm": (PROMPT_BLOCKS, "ns/block", 200),
    "hash/": (PROMPT_BLOCKS, "ns/block", None),
    "decode_append": (1000, "us/step", None),
    "fork_append_release/2048": (2048, "ns/block", None),
    "fork_append_release/1000000": (1_000_000, "ns/block", None),
    "prompt_32k": (1_000_000, "ms/prompt", None),
    "construct/16777216": (1_000_000_000, "s", 0.5),
    "construct": (1_000_000_000, "s", None),
}
PYTHON_BUDGETS_US = {
    "test_decode_append_256": 25.0,
    "test_prompt_32k_cold": 400.0,
    "test_parallel_sampling_8x32k": 3000.0,
    "test_swap_out_plan_4096": 1000.0,
    "test_step_drafts_256": 40.0,
    "test_port_allocate_32k[IdsAndTrie]": 150.0,
    "test_port_free_32k[IdsAndTrie]": 100.0,
    "test_port_match_32k[IdsAndTrie]": 1000.0,
}


def percentile(values: list[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def row(name: str, values: list[float], unit: str, budget: float | None) -> list[str]:
    """Return one line of the table."""
    p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
    verdict = "" if budget is None else ("yes" if p50 <= budget else "**no**")
    shown = "" if budget is None else f"{budget:g}"
    return [name, f"{p50:.3g}", f"{p99:.3g}", unit, shown, verdict]


def criterion_rows() -> list[list[str]]:
    """Return a line for each criterion bench."""
    rows = []
    for file in sorted((ROOT / "target/criterion").glob("**/new/sample.json")):
        meta = json.loads((file.parent / "benchmark.json").read_text())
        name = meta["full_id"]
        found = next((rule for prefix, rule in BUDGETS.items() if name.startswith(prefix)), None)
        if found is None:
            continue
        divisor, unit, budget = found
        sample = json.loads(file.read_text())
        values = [
            time / count / divisor for time, count in zip(sample["times"], sample["iters"], strict=True)
        ]
        # Budgets per block apply to the pool of 64 k blocks, and to hashes without extra keys.
        if name.startswith("pool/") and not name.endswith("/65536"):
            budget = None
        if name.startswith("hash/") and not name.endswith("/none"):
            budget = None
        rows.append(row(name, values, unit, budget))
    return rows


def python_rows(report: Path) -> list[list[str]]:
    """Return a line for each pytest-benchmark bench."""
    rows = []
    for bench in json.loads(report.read_text())["benchmarks"]:
        values = [seconds * 1e6 for seconds in bench["stats"]["data"]]
        every = PYTHON_BUDGETS_US.get(bench["name"].split("[")[0])
        rows.append(row(bench["name"], values, "us/call", PYTHON_BUDGETS_US.get(bench["name"], every)))
    return rows


def table(rows: list[list[str]]) -> str:
    """Return the rows as a Markdown table."""
    head = ["operation", "p50", "p99", "unit", "budget", "met at p50"]
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines)


def cpu() -> tuple[str, str]:
    """Return the processor's name, and whether it has instructions for SHA-256."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fields: dict[str, Any] = dict(
        [part.strip() for part in line.split(":", 1)] for line in info.splitlines() if ":" in line
    )
    return fields.get("model name", platform.processor()), "yes" if " sha_ni" in fields.get(
        "flags", ""
    ) else "no"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, help="JSON of pytest-benchmark")
    parser.add_argument("--memory", type=Path, help="output of the memory bench")
    parser.add_argument("--output", type=Path, help="file to write (default: benches/results/DATE.md)")
    arguments = parser.parse_args()
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    name, sha = cpu()
    text = (
        f"# Bench results, {today}\n\nCommit {commit}, {name}, SHA-NI: {sha}, "
        f"Python {platform.python_version()}.\n"
    )
    text += "\n## Rust (criterion)\n\n" + table(criterion_rows()) + "\n"
    if arguments.python:
        text += "\n## Calls from Python (pytest-benchmark)\n\n" + table(python_rows(arguments.python)) + "\n"
    if arguments.memory:
        text += "\n## Memory (bytes per block; the budget is 80 without verification)\n\n```\n"
        text += arguments.memory.read_text().strip() + "\n```\n"
    output = arguments.output or ROOT / "benches/results" / f"{today}.md"
    output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
