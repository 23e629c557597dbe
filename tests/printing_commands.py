"""Lists every command that prints numbers, with small files for them that are made here. Tests of units
and of output widths run these commands.
"""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

import kvpool
from kvpool.cli import main
from tests.test_cli_journal import record
from tests.test_cli_top import worked
from tests.test_store import fill, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

#: Commands that print a table or a report. {} stands for the folder that ``prepare`` has filled.
TABLES: dict[str, str] = {
    "replay": "replay {}/trace.jsonl --capacity-gib 2 --model llama-3.1-8b --explain --no-progress",
    "replay overloaded": "replay {}/trace.jsonl --capacity-blocks 900 --max-running 1 --step-ms 900"
    " --no-progress",
    "replay tiers": "replay {}/trace.jsonl --capacity-gib 2 --model llama-3.1-8b --host-gib 4 --disk-tib 1"
    " --disk-read 6GB/s --no-progress",
    "replay groups": "replay {}/trace.jsonl --mode lookup --capacity-gib 12 --model gemma-3-27b"
    " --no-progress",
    "replay long model": "replay {}/trace.jsonl --capacity-gib 9 --model qwen3-coder-480b-a35b --no-progress",
    "size": "size {}/trace.jsonl --policies all --model llama-3.1-8b --prefill-tokens-per-s 9000"
    " --no-progress",
    "size many": "size {}/trace.jsonl --policies lru,adaptive"
    " --capacities 1%,2%,3%,4%,5%,6%,7%,8%,9%,10%,2000GiB --model llama-3.1-405b --no-progress",
    "size sample": "size {}/trace.jsonl --sample-blocks 500 --no-progress",
    "size groups": "size {}/trace.jsonl --policies lru --capacities 20GiB,90GiB --hints none --no-progress"
    " --model qwen3.5-397b-a17b",
    "size tiers": "size {}/trace.jsonl --policies lru --capacities 2GiB,9GiB --model llama-3.1-8b"
    " --host-gib 512 --disk-tib 4 --disk-read 6GB/s --prefill-tokens-per-s 9000 --no-progress",
    "compare runs": "compare {}/a.json {}/b.json",
    "compare policies": "compare lru adaptive --trace {}/trace.jsonl --no-progress",
    "compare traces": "compare {}/trace.jsonl {}/other.jsonl --model llama-3.1-8b --no-progress",
    "trace stats": "trace stats {}/trace.jsonl",
    "trace stats kinds": "trace stats {}/kinds.jsonl",
    "journal show": "journal show {}/run.kvj",
    "models": "models",
    "one model": "models qwen3.5-397b-a17b --capacity-gib 900",
    "model on gpus": "models deepseek-v3 --gpu gb200 --gpus 72 --weights-gib 900",
    "store bench": "store bench {} --gib 0.001 --object-kib 4 --object-kib 64",
    "top": "top {}/manager.kvj --once",
}
#: Other commands that have the option ``--json``.
OTHERS: dict[str, str] = {
    "trace validate": "trace validate {}/trace.jsonl",
    "journal replay": "journal replay {}/run.kvj",
    "journal bisect": "journal bisect {}/run.kvj",
    "journal shrink": "journal shrink {}/run.kvj --operation 40",
    "store show": "store show {}/store",
    "store verify": "store verify {}/store",
    "store gc": "store gc {}/store",
    "hash": "hash --block-size 2 1 2 3 4",
    "top": "top {}/manager.kvj --frames 2 --interval 0.05",
}
#: Commands that have the option ``--csv``.
WITH_CSV = ("replay", "size", "compare", "trace stats", "models")

KIND = (
    '{"chat_id": %d, "timestamp": %d, "input_length": 33, "output_length": 5, "hash_ids": [9, 8, 7], '
    '"type": "%s"}\n'
)


def prepare(folder: Path) -> None:
    """Write the files that the commands read."""
    (folder / "trace.jsonl").write_bytes(kvpool.traces.Trace.generate(60, rate_per_s=60).to_jsonl())
    (folder / "other.jsonl").write_bytes(kvpool.traces.Trace.generate(60, seed=1, rate_per_s=9).to_jsonl())
    kinds = "".join(KIND % (number, number, f"kind-{number % 3}-" + "long" * 30) for number in range(6))
    (folder / "kinds.jsonl").write_text(kinds)
    record(folder / "run.kvj", digests=4)
    worked(folder / "manager.kvj")
    (folder / "store").mkdir()
    store, arena = opened(folder / "store")
    with store:
        fill(store, arena, range(3))
    for name, blocks in (("a", 900), ("b", 1200)):
        code, text, error = run(
            f"replay {{}}/trace.jsonl --capacity-blocks {blocks} --json --no-progress", folder
        )
        assert code == 0, error
        (folder / f"{name}.json").write_text(text)


def run(command: str, folder: Path, run_main: Callable[[Sequence[str]], int] = main) -> tuple[int, str, str]:
    """Run a command in this process. Return the exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_main([word.replace("{}", str(folder)) for word in command.split()])
    return code, out.getvalue(), err.getvalue()
