#!/usr/bin/env python3
"""Checks in a real vLLM that a restarted engine loads stored KV if, and only if, nothing that
determines KV has changed.

    python tools/vllm_identity_check.py
    python tools/vllm_identity_check.py --case adapter --case revision

Needs the environment of tools/vllm_env.py. Each case is two starts over one store, on the CPU, with a
change of weights, settings or adapters between them. tools/vllm/identity_cases.py lists the cases. Exit
code 0: the second start loaded chunks in all cases without a change of KV, and in no others, and all
tokens equal those of an engine without a store. 1: a difference, or a failed run. 2: bad usage. 130:
Ctrl-C.
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
from tools.vllm.identity_cases import CASES  # noqa: E402
from tools.vllm_check import child_environment  # noqa: E402

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def problems_of(record: dict[str, Any]) -> list[str]:
    name = record["case"]
    starts = {start: record[start] for start in ("first", "during", "stock", "second") if start in record}
    broken = [f"{name}: {start}: {found['error']}" for start, found in starts.items() if "error" in found]
    if broken:
        return broken
    problems = []
    second = record["second"]
    if not record["first"]["writes"]:
        problems.append(f"{name}: the first start wrote nothing")
    if record["hits"] and not second["loads"]:
        problems.append(f"{name}: KV has not changed, and nothing was loaded")
    if not record["hits"] and second["loads"]:
        problems.append(f"{name}: KV has changed, and {second['loads']} chunks were loaded")
    if second["tokens"] != record["stock"]["tokens"]:
        problems.append(f"{name}: other tokens than without a store")
    if second["damaged"] or second["failed"]:
        problems.append(f"{name}: {second['damaged']} chunks damaged, {second['failed']} failed")
    return problems


def check(cases: int, options: argparse.Namespace) -> tuple[list[str], str]:
    """Runs the cases. Returns the problems, and the number of cases."""
    settings = common.read_settings(options.venv.absolute())
    with tempfile.TemporaryDirectory(prefix="kvpool-identity-check-") as folder:
        result = Path(folder) / "records.json"
        command = [settings["python"], "-m", "tools.vllm.identity_engine", "--scratch", folder]
        command += ["--result", str(result), *(f"--case={part}" for part in options.case)]
        environment = child_environment(Engine(STOCK, STOCK), settings) | {"PYTHONPATH": str(ROOT / "python")}
        problem, log = common.run_child(command, environment, options.timeout)
        records: list[dict[str, Any]] = common.read_result(result, problem, log)
    table = Table(
        "change", "base", "KV", "written", "loaded", "tokens as stock", "s", title="Two starts over one store"
    )
    problems = [f"{problem}\n{common.last_lines(log)}"] if problem else []
    for record in records:
        problems += problems_of(record)
        second, stock = record["second"], record["stock"]
        same = "error" not in stock and second.get("tokens") == stock["tokens"]
        kv = "same" if record["hits"] else "other"
        counts = [
            str(record["first"].get("writes", "")),
            str(second.get("loads", "")),
            "yes" if same else "no",
        ]
        table.add_row(record["case"], record["base"], kv, *counts, f"{record['seconds']:.1f}")
    if len(records) < cases:
        problems.append(f"only {len(records)} of {cases} cases have run")
    common.wide_console().print(table)
    return problems, f", {len(records)} cases, {len(problems)} problems"


def main(argv: Sequence[str] | None = None) -> int:
    parser = common.arguments(__doc__)
    parser.add_argument(
        "--case", action="append", default=[], help="cases with this in their name; can be repeated"
    )
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for all cases (default: 3600)")
    options = parser.parse_args(argv)
    if options.timeout <= 0:
        parser.error("--timeout is above zero")
    chosen = [case for case in CASES if not options.case or any(part in case.name for part in options.case)]
    if not chosen:
        parser.error(f"--case: no case has {' or '.join(options.case)} in its name")
    return common.ended("vllm_identity_check", lambda _: check(len(chosen), options))


if __name__ == "__main__":
    sys.exit(main())
