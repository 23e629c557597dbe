"""Common code of the tools for vLLM: the environment, engine processes, arguments, and the end of a
check.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[2]


class ConformanceError(Exception):
    """Ends the program; the message states how to repair the problem."""


def arguments(doc: str | None, *, venv: bool = True) -> argparse.ArgumentParser:
    """Makes a parser. Its help is the tool's docstring, and its option selects the environment with
    vLLM.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    if venv:
        folder = ROOT / ".venv-vllm"
        parser.add_argument("--venv", type=Path, default=folder, help="the environment (default: .venv-vllm)")
    return parser


def engine_arguments(doc: str | None, *, prompts: int) -> argparse.ArgumentParser:
    """Makes a parser for tools that run engines with made-up models."""
    parser = arguments(doc)
    parser.add_argument("--prompts", type=int, default=prompts, help=f"how many prompts (default: {prompts})")
    parser.add_argument(
        "--blocks", type=int, default=80, help="blocks of the pool, of 32 tokens (default: 80)"
    )
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one engine (default: 900)")
    return parser


def parse_engine(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser.parse_args(argv)
    if options.prompts < 1 or options.blocks < 16 or options.timeout <= 0:
        parser.error("--prompts is at least 1, --blocks at least 16, --timeout above zero")
    return options


def read_settings(venv: Path) -> dict[str, Any]:
    """Reads the description of the environment that tools/vllm_env.py wrote."""
    file = venv / "kvpool.json"
    try:
        settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConformanceError(f"{venv} holds no vLLM: run tools/vllm_env.py (make vllm-env) first") from None
    except (OSError, ValueError) as error:
        raise ConformanceError(f"{file}: {error}; run tools/vllm_env.py again") from error
    missing = [key for key in ("python", "tests", "environment") if key not in settings]
    if missing or not Path(settings["python"]).exists():
        raise ConformanceError(f"{file}: incomplete; run tools/vllm_env.py again")
    return settings


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and the processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_child(command: Sequence[str], environment: Mapping[str, str], timeout: float) -> tuple[str, str]:
    """Runs an engine's process to its end or to the timeout. Returns the problem, if there is one, and
    the output.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=timeout)
            problem = f"exited with {code}" if code else ""
        except subprocess.TimeoutExpired:
            problem = f"still running after {timeout:g} s"
        finally:
            kill(process)
        output.seek(0)
        return problem, output.read().decode("utf-8", "replace")


def last_lines(log: str, lines: int = 30) -> str:
    return "\n".join(log.splitlines()[-lines:])


def read_result(file: Path, problem: str, log: str, prefix: str = "") -> Any:
    """Reads the JSON result of a process. If it is missing, the error contains the problem and the last
    lines of the output.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConformanceError(f"{prefix}{problem or error}\n{last_lines(log)}") from error


def wide_console(width: int = 160) -> Console:
    """Makes a console for tables. If the output is not a terminal, tables get a fixed width so that
    nothing is cut.
    """
    out = Console()
    return out if out.is_terminal else Console(width=width)


def ended(
    name: str,
    check: Callable[[Console], tuple[Sequence[str], str]],
    errors: tuple[type[Exception], ...] = (ConformanceError,),
) -> int:
    """Runs a check, prints its problems and its final message, and returns the exit code."""
    console, begun = Console(stderr=True), time.monotonic()
    red: dict[str, Any] = {"style": "red", "markup": False, "highlight": False, "soft_wrap": True}
    try:
        problems, words = check(console)
    except errors as error:
        console.print(f"{name}: {error}", **red)
        return 1
    except KeyboardInterrupt:
        console.print(f"{name}: stopped")
        return 130
    for problem in problems:
        console.print(problem, **red)
    seconds = f"{time.monotonic() - begun:.0f} s"
    console.print(f"{seconds}{words}", markup=False, highlight=False, soft_wrap=True)
    return 1 if problems else 0
