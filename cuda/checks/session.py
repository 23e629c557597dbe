"""What every section works with: the device, the engines, the time that is left, and the report."""

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

#: Of the ways that a copy between stores of a device and the host can take.
Method: TypeAlias = Literal["auto", "kernel", "batch", "staged", "memcpy"]

METHODS: tuple[Method, ...] = ("auto", "kernel", "batch", "staged", "memcpy")

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class CheckFailedError(Exception):
    """Something does not hold."""


class Skip(Exception):  # noqa: N818  # no error
    """Something cannot be checked here; the message says why."""


class OutOfTimeError(Exception):
    """The section has used up its time."""


def expect(holds: object, otherwise: str) -> None:
    """Fails the check with a message unless something holds."""
    if not holds:
        raise CheckFailedError(otherwise)


def rng(seed: object) -> random.Random:
    """Numbers that are the same in every run."""
    return random.Random(repr(seed))  # noqa: S311  # test data


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """How much is done."""

    #: Random layouts at most, and seconds for them.
    trials: int
    trial_seconds: float
    #: Bytes of the memory of a random layout.
    arena: int
    #: Bytes of a measured copy over the link, and on the device.
    payload: int
    device_payload: int
    #: Pieces of a block in the benches.
    regions: int
    repetitions: int
    #: Thread blocks of kernels that cross the link.
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
    """The time that is left, of the run and of a section."""

    def __init__(self, budget: float) -> None:
        self.start = time.monotonic()
        self.end = self.start + budget
        self._section_end = self.end

    @property
    def left(self) -> float:
        """Seconds that the section has left."""
        return self._section_end - time.monotonic()

    def begin_section(self, seconds: float) -> None:
        """Gives a section so many seconds, or what the run has left."""
        self._section_end = min(self.end, time.monotonic() + seconds)

    def tick(self) -> None:
        """Ends the section when its time is over.

        Raises:
            OutOfTimeError: It is.
        """
        if self.left < 0:
            raise OutOfTimeError


@dataclasses.dataclass(slots=True)
class Session:
    """One run."""

    driver: Driver
    ordinal: int
    report: Report
    clock: Clock
    effort: Effort
    #: Of the device, and the CPU twin.
    engine: TransferEngine
    twin: TransferEngine
    #: torch, if it uses this device.
    torch: Any
    #: torch's int64, which a mapping on the device is of, if torch is there.
    int64: Any
    dry_run: bool
    section: str = ""
    #: What the benches have measured so far.
    rates: Rates | None = None
    _waiting: int | None = None

    @property
    def device(self) -> str:
        """The device's name for stores and engines."""
        return f"cuda:{self.ordinal}"

    @contextlib.contextmanager
    def check(self, name: str) -> Iterator[list[str]]:
        """Something that is checked: the body raises if it does not hold. The list takes what is to be
        told of it.
        """
        self.clock.tick()
        with self.untimed_check(name) as notes:
            yield notes

    @contextlib.contextmanager
    def untimed_check(self, name: str) -> Iterator[list[str]]:
        """As ``check``, also when the time is over."""
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
        """A table of figures. A bench that breaks off is a check that failed."""
        with self.check(title):
            yield

    def figure(self, figure: Figure) -> None:
        """Something was measured."""
        self.report.figures.append(figure)
        print("  " + " | ".join(figure.cells()), flush=True)
        self.clock.tick()

    def finish(self, transfer: Transfer) -> Transfer:
        """Waits for a transfer by the driver's own means: ``wait`` naps between looks, to hear Ctrl-C."""
        if self._waiting is None:
            self._waiting = self.driver.stream()
        transfer.wait_on(self._waiting)
        self.driver.synchronize(self._waiting)
        transfer.wait(60)
        return transfer

    @contextlib.contextmanager
    def stream(self) -> Iterator[int]:
        """A stream of the checks' own."""
        stream = self.driver.stream()
        try:
            yield stream
        finally:
            self.driver.close_stream(stream)
