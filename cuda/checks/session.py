"""Objects that all sections of a run share: the device, the engines, the remaining time, and the report."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .report import Check, Figure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvpool.transfer import Transfer, TransferEngine

    from .driver import Driver
    from .measure import Rates
    from .report import Outcome, Report

#: The methods by which a copy between a device and a host store can be made. ``auto`` is the planner's
#: choice.
Method: TypeAlias = Literal["auto", "kernel", "batch", "staged", "memcpy"]

METHODS: tuple[Method, ...] = ("auto", "kernel", "batch", "staged", "memcpy")

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class CheckFailedError(Exception):
    """A check failed."""


class Skip(Exception):  # noqa: N818  # no error
    """A check cannot run on this machine. The message gives the reason."""


class OutOfTimeError(Exception):
    """The time of the section has run out."""


def expect(holds: object, otherwise: str) -> None:
    """Raise an error with the message ``otherwise`` unless ``holds`` is true, so that the check fails."""
    if not holds:
        raise CheckFailedError(otherwise)


def rng(seed: object) -> random.Random:
    """Return a random generator. It gives the same numbers in every run."""
    return random.Random(repr(seed))  # noqa: S311  # test data


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """Sizes and numbers that determine the duration of a run."""

    #: Maximum number of random layouts, and the number of seconds for all of them.
    trials: int
    trial_seconds: float
    #: Approximate number of bytes of memory for each random layout.
    arena: int
    #: Number of bytes of a measured copy between host and device, and of one on the device.
    payload: int
    device_payload: int
    #: Number of pieces of each block in the benchmarks.
    regions: int
    repetitions: int
    #: Numbers of thread blocks that are tried for kernels that copy between host and device.
    ctas: tuple[int, ...]


FULL = Effort(
    trials=200,
    trial_seconds=45,
    arena=512 * KIB,
    payload=256 * MIB,
    device_payload=GIB,
    regions=64,
    repetitions=5,
    ctas=(4, 8, 16, 32, 64, 128),
)
QUICK = dataclasses.replace(
    FULL,
    trials=20,
    trial_seconds=10,
    payload=64 * MIB,
    device_payload=256 * MIB,
    repetitions=3,
    ctas=(4, 16, 64),
)
DRY = Effort(
    trials=3,
    trial_seconds=6,
    arena=12 * KIB,
    payload=MIB,
    device_payload=MIB,
    regions=8,
    repetitions=1,
    ctas=(4, 16),
)


class Clock:
    """The seconds that remain for the run and for the current section."""

    def __init__(self, budget: float) -> None:
        self.start = time.monotonic()
        self.end = self.start + budget
        self._section_end = self.end

    @property
    def left(self) -> float:
        """Number of seconds that remain for the section."""
        return self._section_end - time.monotonic()

    def begin_section(self, seconds: float) -> None:
        """Start a section that may take this number of seconds, but at most the rest of the run's time."""
        self._section_end = min(self.end, time.monotonic() + seconds)

    def tick(self) -> None:
        """End the section if its time has run out.

        Raises:
            OutOfTimeError: The time of the section has run out.
        """
        if self.left < 0:
            raise OutOfTimeError


@dataclasses.dataclass(slots=True)
class Session:
    """The objects and results that all sections of one run of the GPU check share."""

    driver: Driver
    ordinal: int
    report: Report
    clock: Clock
    effort: Effort
    #: The engine of the device, and the CPU twin, an engine that copies on the CPU.
    engine: TransferEngine
    twin: TransferEngine
    #: torch if it uses this device, otherwise None.
    torch: Any
    #: torch's int64, the type of a mapping on the device; None if torch is not installed.
    int64: Any
    dry_run: bool
    section: str = ""
    #: The rates that the benchmarks have measured so far.
    rates: Rates | None = None
    _waiting: int | None = None

    @property
    def device(self) -> str:
        """Name of the device for stores and engines, for example "cuda:0"."""
        return f"cuda:{self.ordinal}"

    @contextlib.contextmanager
    def check(self, name: str) -> Iterator[list[str]]:
        """Run the body of the ``with`` statement as a check.

        An error in the body fails the check. The body appends remarks to the yielded list.
        """
        self.clock.tick()
        with self.untimed_check(name) as notes:
            yield notes

    @contextlib.contextmanager
    def untimed_check(self, name: str) -> Iterator[list[str]]:
        """Like ``check``, but also runs if the section's time has run out."""
        notes: list[str] = []
        outcome: Outcome = "ok"
        start = time.monotonic()
        try:
            yield notes
        except Skip as reason:
            outcome, notes = "skipped", [str(reason)]
        except OutOfTimeError:
            outcome, notes = "skipped", [*notes, "out of time"]
            self.report.ended_early = "the time was over"
        except Exception as error:
            outcome, notes = "FAILED", [*notes, f"{type(error).__name__}: {error}"]
        check = Check(self.section, name, outcome, "; ".join(notes), time.monotonic() - start)
        self.report.checks.append(check)
        print(" | ".join(check.cells()), flush=True)

    @contextlib.contextmanager
    def bench(self, title: str) -> Iterator[None]:
        """Record the measurements of a table.

        If the body raises an error, it is recorded as a failed check.
        """
        with self.check(title):
            yield

    def figure(self, figure: Figure) -> None:
        """Record and print a measurement."""
        self.report.figures.append(figure)
        print("  " + " | ".join(figure.cells()), flush=True)
        self.clock.tick()

    def finish(self, transfer: Transfer) -> Transfer:
        """Wait for a transfer with the driver's own functions.

        ``wait`` of kvpool would sleep between polls so that it can react to Ctrl-C, which makes the
        measured time longer.
        """
        if self._waiting is None:
            self._waiting = self.driver.stream()
        transfer.wait_on(self._waiting)
        self.driver.synchronize(self._waiting)
        transfer.wait(60)
        return transfer

    @contextlib.contextmanager
    def stream(self) -> Iterator[int]:
        """Yield a stream for the checks."""
        stream = self.driver.stream()
        try:
            yield stream
        finally:
            self.driver.close_stream(stream)
