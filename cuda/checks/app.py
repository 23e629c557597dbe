"""Runs ``python cuda/gpu_check.py``, which checks and measures ``kvpool.transfer`` on a GPU.

A run takes minutes. It needs a driver, a GPU and kvpool, and uses torch with CUDA if it is installed.
It prints each check and each measurement at once, and writes the report after every section, so an
interrupted run loses nothing. It exits with 0 if all checks pass and all targets are reached, with 1 if
not, and with 2 if there is no GPU.

With ``--dry-run`` and the tests' fake driver it runs without a GPU, to show that the program itself
works::

    python tests/transfer/fake_cuda/build.py target/fake
    KVPOOL_LIBCUDA=target/fake/libcuda.so.1 python cuda/gpu_check.py --dry-run --quick
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from .session import Session

SECTIONS = ("correctness", "bench")
#: Seconds that each section may take. The benchmark ("bench") gets the rest of the run's time.
_SECONDS = {"correctness": 120.0, "bench": 1e9}
#: Seconds after the end of the run's time at which a run that hangs is ended.
_GRACE = 45.0
_NO_GPU = 2


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds and smaller copies: a minute or two"
    )
    parser.add_argument("--only", action="append", choices=SECTIONS, help="this section; may be given again")
    parser.add_argument("--out", type=Path, help="folder of the report (default: benches/results)")
    parser.add_argument("--json", type=Path, help="write the report as JSON, too")
    parser.add_argument("--device", type=int, default=0, help="number of the device")
    parser.add_argument("--budget", type=float, default=420.0, help="seconds to stay within (default: 420)")
    parser.add_argument("--no-torch", action="store_true", help="go without torch, although it is there")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, no verdicts: for the fake driver")
    return parser.parse_args(given)


def _missing(ordinal: int) -> str:
    """Return which requirement of a run is missing, or "" if nothing is missing."""
    try:
        from kvpool.errors import KvpoolError
        from kvpool.transfer import TransferEngine
    except ImportError as error:
        return (
            f"kvpool is not installed for this Python ({error}): install the wheel, "
            "or set PYTHONPATH to python/"
        )
    try:
        TransferEngine(f"cuda:{ordinal}").close()
    except KvpoolError as error:
        return f"no GPU to check: {error}. --help says how to run it dry"
    return ""


def _torch(ordinal: int, *, wanted: bool, dry_run: bool) -> tuple[Any, Any]:
    """Return torch, or None if it cannot use the device.

    Also return torch's int64, or None if torch is not installed.
    """
    if not wanted:
        return None, None
    try:
        import torch
    except ImportError:
        return None, None
    uses_device = not dry_run and torch.cuda.is_available() and torch.cuda.device_count() > ordinal
    if uses_device:
        torch.cuda.set_device(ordinal)
    return (torch if uses_device else None), torch.int64


def _path(folder: Path, facts: dict[str, str]) -> Path:
    """Return the path of a new report. Reports of the same day get different names."""
    card = re.sub(r"[^a-z0-9]+", "-", facts["card"].lower()).strip("-")
    name = f"gpu-{card}-{facts['date']}"
    path, number = folder / f"{name}.md", 2
    while path.exists():
        path, number = folder / f"{name}-{number}.md", number + 1
    return path


class _Run:
    """Runs the sections one after the other, and writes the report."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from kvpool.transfer import TransferEngine

        from . import load, session
        from .driver import Driver
        from .report import Report

        self._arguments = arguments
        driver = Driver(arguments.device)
        torch, int64 = _torch(arguments.device, wanted=not arguments.no_torch, dry_run=arguments.dry_run)
        effort = session.DRY if arguments.dry_run else session.QUICK if arguments.quick else session.FULL
        size = "dry" if arguments.dry_run else "quick" if arguments.quick else "full"
        facts = {
            **load.facts(driver, torch),
            "run": f"{size}, sections: {', '.join(arguments.only or SECTIONS)}",
        }
        # Mark the report if a fake driver made it, because these are not results of a GPU.
        self.report = Report(facts, dry_run=arguments.dry_run or driver.is_fake)
        folder = arguments.out or load.ROOT / (
            "target/gpu-check" if self.report.dry_run else "benches/results"
        )
        self.path = _path(folder, self.report.facts)
        # The lock is reentrant, because a signal handler may write while this thread writes.
        self._writing = threading.RLock()
        self._session = session.Session(
            driver=driver,
            ordinal=arguments.device,
            report=self.report,
            clock=session.Clock(arguments.budget),
            effort=effort,
            engine=TransferEngine(f"cuda:{arguments.device}"),
            twin=TransferEngine("cpu"),
            torch=torch,
            int64=int64,
            dry_run=arguments.dry_run,
        )

    def write(self) -> None:
        """Write the report with the results so far."""
        with self._writing:
            self._judge()
            self.report.write(self.path, self._arguments.json)

    def sections(self) -> None:
        """Run the selected sections."""
        wanted = self._arguments.only or SECTIONS
        for name in SECTIONS:
            if name in wanted:
                self._section(name, _section(name))
        self._violations()

    def _section(self, name: str, run: Callable[[Session], object]) -> None:
        session = self._session
        session.section = name
        # A dry run has no time limit for its sections. It does not measure a GPU, and its time depends
        # on the load of the machine.
        session.clock.begin_section(1e9 if session.dry_run else _SECONDS[name])
        try:
            run(session)
        except Exception as error:
            # Record errors outside of a check. For example, the time of the section has run out, or the
            # section cannot run at all.
            with session.untimed_check("the rest of the section"):
                raise error from None
        finally:
            self.write()

    def _judge(self) -> None:
        from .verdicts import judge

        if self._session.rates is not None:
            self.report.verdicts = judge(self._session.rates, measured=not self.report.dry_run)

    def _violations(self) -> None:
        """Check that the fake driver counted no violation of the driver's rules."""
        from .session import expect

        session = self._session
        if session.driver.is_fake:
            session.section = "fake driver"
            with session.untimed_check("the driver's rules are kept"):
                expect(not session.driver.violation, session.driver.violation)
        self.write()

    def close(self) -> None:
        """Close the engines."""
        for engine in (self._session.engine, self._session.twin):
            engine.close()


def _section(name: str) -> Callable[[Session], object]:
    """Return the function that runs a section.

    The function imports the section only when it is called, so that a message appears even if kvpool is
    missing.
    """
    from . import bench, correctness

    runs: dict[str, Callable[[Session], object]] = {
        "correctness": correctness.check,
        "bench": bench.run,
    }
    return runs[name]


def _end_at_once(run: _Run, reason: str) -> None:
    """Write the report with the results so far, and end the process at once."""
    run.report.ended_early = reason
    run.write()
    print(f"\ngpu_check: {reason}. Report: {run.path}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)


def _watch(run: _Run, seconds: float) -> threading.Timer:
    """If a run exceeds its time, prints the stacks of all threads and ends it."""

    def end() -> None:
        faulthandler.dump_traceback(all_threads=True)
        _end_at_once(run, "it hung, and was ended")

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


def _heed_signals(run: _Run) -> None:
    """End the run when a signal arrives.

    The handler raises no exception, because an exception could interrupt any code, even a library that
    holds a lock.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        _end_at_once(run, "it was interrupted")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def main(given: Sequence[str] | None = None) -> int:
    """Run the program."""
    arguments = _arguments(given)
    if reason := _missing(arguments.device):
        print(f"gpu_check: {reason}", file=sys.stderr)
        return _NO_GPU
    run = _Run(arguments)
    timer = _watch(run, arguments.budget + _GRACE)
    _heed_signals(run)
    run.sections()
    timer.cancel()
    run.write()
    run.close()
    print(f"\n{run.report.summary()}\n\nReport: {run.path}")
    return 1 if run.report.failed or run.report.ended_early else 0
