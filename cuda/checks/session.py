"""Common objects of all sections: the device, the engines, the remaining time, and the report."""

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

#: The ways in which a copy between a store of a device and one of the host can be made.
Method: TypeAlias = Literal["auto", "kernel", "batch", "staged", "memcpy"]

METHODS: tuple[Method, ...] = ("auto", "kernel", "batch", "staged", "memcpy")

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class CheckFailedError(Exception):
    """A check failed."""


class Skip(Exception):  # noqa: N818  # no error
    """A check cannot run here. The message gives the reason."""


class OutOfTimeError(Exception):
    """The section has used up its time."""


def expect(holds: object, otherwise: str) -> None:
    """Fail the check with the message ``otherwise`` unless ``holds`` is true."""
    if not holds:
        raise CheckFailedError(otherwise)


def rng(seed: object) -> random.Random:
    """Return a random generator that gives the same numbers in every run."""
    return random.Random(repr(seed))  # noqa: S311  # test data


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """Sizes and numbers that determine how long a run takes."""

    #: Maximum number of random layouts, and the seconds for them.
    trials: int
    trial_seconds: float
    #: Bytes of the memory of a random layout.
    arena: int
    #: Bytes of a measured copy over the link, and of one on the device.
    payload: int
    device_payload: int
    #: Number of pieces of a block in the benchmarks.
    regions: int
    repetitions: int
    #: Numbers of thread blocks for kernels that cross the link.
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
    """The remaining time of the run and of a section."""

    def __init__(self, budget: float) -> None:
        self.start = time.monotonic()
        self.end = self.start + budget
        self._section_end = self.end

    @property
    def left(self) -> float:
        """Number of seconds that remain for the section."""
        return self._section_end - time.monotonic()

    def begin_section(self, seconds: float) -> None:
        """Set the time of a section to this number of seconds, or to the rest of the run's time."""
        self._section_end = min(self.end, time.monotonic() + seconds)

    def tick(self) -> None:
        """End the section if its time has run out.

        Raises:
            OutOfTimeError: The time has run out.
        """
        if self.left < 0:
            raise OutOfTimeError


@dataclasses.dataclass(slots=True)
class Session:
    """The state of one run."""

    driver: Driver
    ordinal: int
    report: Report
    clock: Clock
    effort: Effort
    #: The engine of the device, and its CPU twin.
    engine: TransferEngine
    twin: TransferEngine
    #: torch, if it uses this device.
    torch: Any
    #: torch's int64, the type of a mapping on the device, if torch is installed.
    int64: Any
    dry_run: bool
    section: str = ""
    #: The rates that the benchmarks have measured so far.
    rates: Rates | None = None
    _waiting: int | None = None

    @property
    def device(self) -> str:
        """The device's name for stores and engines."""
        return f"cuda:{self.ordinal}"

    @contextlib.contextmanager
    def check(self, name: str) -> Iterator[list[str]]:
        """Run a check.

        The body of the ``with`` statement raises an error if the check fails, and appends remarks to
        the yielded list.
        """
        self.clock.tick()
        with self.untimed_check(name) as notes:
            yield notes

    @contextlib.contextmanager
    def untimed_check(self, name: str) -> Iterator[list[str]]:
        """Like ``check``, but also runs when the time has run out."""
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
        """Measure a table of figures. A benchmark that ends with an error is recorded as a failed check."""
        with self.check(title):
            yield

    def figure(self, figure: Figure) -> None:
        """Record a measurement, and print it."""
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
