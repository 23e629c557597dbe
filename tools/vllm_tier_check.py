#!/usr/bin/env python3
"""Checks kvpool's tier in a real vLLM engine that is restarted: the same tokens, and hits from disk.

    python tools/vllm_tier_check.py                 # a disk, and a folder that engines share
    python tools/vllm_tier_check.py --model full --prompts 200

Needs the environment of tools/vllm_env.py. For each model three engines run the same prompts on the
CPU, each in its own process: one without offloading, one that offloads to an empty folder, and one that
starts with this folder. Exit code 0: all generated the same tokens, and the third engine loaded chunks
that the second had written. 1: a difference, or a failed run. 2: bad usage. 130: Ctrl-C.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

ROOT: Final = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # the folder tools/ contains a folder named vllm

from tools.vllm import common  # noqa: E402
from tools.vllm.check_compare import STOCK, Engine  # noqa: E402
from tools.vllm.check_engine import MODELS  # noqa: E402
from tools.vllm_check import child_environment  # noqa: E402

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

#: The kinds of storage that the tier is tested with.
PLACES: Final = ("disk", "folder")


def run(
    name: str,
    model: str,
    place: str | None,
    scratch: Path,
    settings: dict[str, Any],
    options: argparse.Namespace,
) -> dict[str, Any]:
    result = scratch / f"{name}.json"
    command = [settings["python"], "-m", "tools.vllm.tier_engine", "--model", model]
    command += ["--prompts", str(options.prompts), "--blocks", str(options.blocks), "--result", str(result)]
    command += ["--model-folder", str(scratch / "model")]
    if place == "disk":
        command += ["--folder", str(scratch / "kv")]
    elif place:
        command += ["--url", f"folder://{scratch / 'kv'}"]
    problem, log = common.run_child(
        command, child_environment(Engine(STOCK, STOCK), settings), options.timeout
    )
    found: dict[str, Any] = common.read_result(result, problem, log, f"{model}, {name}: ")
    return found


def check(
    model: str, place: str, settings: dict[str, Any], options: argparse.Namespace, table: Table
) -> list[str]:
    """Runs the three engines. Returns the problems."""
    with tempfile.TemporaryDirectory(prefix="kvpool-tier-check-") as folder:
        scratch = Path(folder)
        (scratch / "model").mkdir()
        runs = {
            "without": run("without", model, None, scratch, settings, options),
            "cold": run("cold", model, place, scratch, settings, options),
            "restarted": run("restarted", model, place, scratch, settings, options),
        }
    problems = []
    for name, found in runs.items():
        store = found["store"] or {}
        same = found["tokens"] == runs["without"]["tokens"]
        counted = [f"{store.get(field, 0):,}" for field in ("writes", "loads", "misses", "damaged")]
        tokens, cached = sum(map(len, found["tokens"])), found["cached"]
        seconds = f"{found['seconds']:.1f}"
        table.add_row(
            model, place, name, f"{tokens:,}", "yes" if same else "no", f"{cached:,}", *counted, seconds
        )
        if not same:
            problems.append(f"{model}, {place}, {name}: other tokens than without offloading")
        if store.get("damaged", 0) or store.get("failed", 0):
            problems.append(f"{model}, {place}, {name}: {store}")
    cold, warm = runs["cold"]["store"], runs["restarted"]["store"]
    if not cold["writes"]:
        problems.append(f"{model}, {place}: nothing was written: {cold}")
    if not warm["loads"]:
        problems.append(f"{model}, {place}: nothing was loaded after the restart: {warm}")
    if runs["restarted"]["cached"] <= runs["cold"]["cached"]:
        problems.append(f"{model}, {place}: no more hits after the restart than before")
    return problems


def check_all(models: Sequence[str], options: argparse.Namespace) -> tuple[list[str], str]:
    heads = (
        "model",
        "tier",
        "engine",
        "tokens",
        "same",
        "cached",
        "writes",
        "loads",
        "misses",
        "damaged",
        "s",
    )
    table = Table(*heads, title="vLLM over kvpool's tier, and restarted over what it left")
    settings, problems = common.read_settings(options.venv.absolute()), []
    for model in models:
        for place in dict.fromkeys(options.place or PLACES):
            problems += check(model, place, settings, options, table)
    common.wide_console().print(table)
    return problems, ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = common.engine_arguments(__doc__, prompts=80)
    models = [model for model in MODELS if model != "states"]
    parser.add_argument(
        "--model", action="append", choices=models, help="model to check; can be repeated (default: all)"
    )
    parser.add_argument(
        "--place", action="append", choices=PLACES, help="place of the tier; can be repeated (default: all)"
    )
    options = common.parse_engine(parser, argv)
    return common.ended(
        "vllm_tier_check", lambda _: check_all(list(dict.fromkeys(options.model or models)), options)
    )


if __name__ == "__main__":
    sys.exit(main())
