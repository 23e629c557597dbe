"""Shared code of the benchmarks: timing, engines with different thresholds, and stores to copy between."""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kvpool.transfer import BlockStore, TransferEngine

from .memory import DeviceMemory
from .report import Figure
from .session import MIB, expect, rng

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvpool.transfer import Transfer

    from .session import Method, Session

Direction: TypeAlias = Literal["to host", "to device"]

TO_HOST: Direction = "to host"
TO_DEVICE: Direction = "to device"
ON_DEVICE = "on device"

#: Random bytes that are repeated to fill blocks. No size of a piece divides their number, so the blocks
#: differ.
TILE = rng("tile").randbytes(MIB - 4093)

_LOOKED_AT = 2

#: Seconds of copies before the measured ones. The first copies on new memory take a tenth longer.
_WARM_UP = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """The result of a measurement: median times over several copies."""

    seconds: float
    submit_seconds: float
    nbytes: int
    method: str

    @property
    def rate(self) -> float:
        """Rate in GB/s, or 0 if the measured time is 0."""
        return self.nbytes / self.seconds / 1e9 if self.seconds > 0 else 0.0

    def figure(
        self, table: str, what: str, share: float | None, *, passes: int = 1, note: str = ""
    ) -> Figure:
        """Return a row of a table.

        ``passes`` is 2 if the rate counts the bytes that are read and the bytes that are written,
        otherwise 1.
        """
        return Figure(
            table, what, passes * self.rate, share, 1e6 * self.seconds, 1e6 * self.submit_seconds, note
        )


@dataclasses.dataclass(slots=True)
class Rates:
    """The measured rates from which the verdicts are computed, in GB/s."""

    #: Rates of plain copies: to the host, to the device, and on the device. The last one counts bytes
    #: read and bytes written.
    plain: dict[str, float] = dataclasses.field(default_factory=dict)
    #: Rates of the copy kernel on the device by the size of a piece in KiB. They count bytes read and
    #: bytes written.
    on_device: dict[int, float] = dataclasses.field(default_factory=dict)
    #: Rates of swaps, by direction and size of a piece in KiB, and then by the way to copy.
    swaps: dict[tuple[Direction, int], dict[str, float]] = dataclasses.field(default_factory=dict)

    def share(self, rate: float, of: str) -> float | None:
        """Return this rate divided by the rate of the plain copy, or None if that was not measured."""
        plain = self.plain.get(of, 0.0)
        return rate / plain if plain else None


def timed(session: Session, submit: Callable[[], Transfer], repetitions: int, limit: float = 2.0) -> Timing:
    """Measure the time of a transfer.

    First makes some copies without measuring, which create buffers and warm the device up. Then
    measures copies up to a maximum number of repetitions or seconds.
    """
    end = time.monotonic() + _WARM_UP
    session.finish(submit())
    while time.monotonic() < end and not session.dry_run:
        session.finish(submit())
    seconds: list[float] = []
    submits: list[float] = []
    end = time.monotonic() + limit
    while not seconds or (len(seconds) < repetitions and time.monotonic() < end):
        start = time.perf_counter()
        transfer = submit()
        submits.append(time.perf_counter() - start)
        session.finish(transfer)
        seconds.append(transfer.seconds or 0.0)
    return Timing(statistics.median(seconds), statistics.median(submits), transfer.nbytes, transfer.method)


def as_mapping(pairs: Sequence[tuple[int, int]]) -> Any:
    """Return the pairs as an int64 array of shape [n, 2], which kvpool reads at the lowest cost."""
    numbers = array("q", [number for pair in pairs for number in pair])
    return memoryview(numbers).cast("B").cast("q", (len(pairs), 2))


def planes(memory: DeviceMemory, piece: int, num_blocks: int, regions: int, device: str) -> BlockStore:
    """Return a store whose blocks have pieces of equal size in separate planes, like K and V of layers."""
    plane = num_blocks * piece
    where = [(memory.address + region * plane, piece, piece) for region in range(regions)]
    return BlockStore.from_regions(where, num_blocks, device=device, keep_alive=memory)


class Engines:
    """Engines whose planners, which choose the method of a transfer, use different thresholds."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._folder = tempfile.TemporaryDirectory()
        #: The engine with kvpool's built-in thresholds.
        self.default = TransferEngine(session.device)
        #: The engine with thresholds that were measured by a calibration. Until then it is the default
        #: engine.
        self.calibrated = self.default
        self._by_ctas: dict[int, TransferEngine] = {}

    def path(self, name: str) -> Path:
        """Return the path of a file in which a calibration is saved."""
        return Path(self._folder.name) / f"{name}.json"

    def calibrate(self) -> dict[str, Any]:
        """Calibrate with one engine, and load the saved thresholds with another. Return these thresholds."""
        path = self.path("calibration")
        with TransferEngine(self._session.device) as engine:
            thresholds: dict[str, Any] = engine.calibrate(path)["thresholds"]
        self.calibrated = TransferEngine(self._session.device, calibration=path)
        return thresholds

    def with_thresholds(self, name: str, thresholds: dict[str, Any]) -> TransferEngine:
        """Return an engine that uses these thresholds."""
        card = self.default.card
        if card is None:
            raise ValueError("an engine of the CPU has no thresholds")
        model, pci, driver = card
        calibration = {
            "card": {"name": model, "pci": pci, "driver": driver},
            "thresholds": thresholds,
            "measurements": [],
        }
        file = self.path(name)
        file.write_text(json.dumps({f"{model} at {pci}, driver {driver}": calibration}))
        return TransferEngine(self._session.device, calibration=file)

    def with_ctas(self, ctas: int) -> TransferEngine:
        """Return an engine whose kernels use this number of thread blocks for copies to and from the host."""
        if ctas not in self._by_ctas:
            rows = [{"descriptors": 0, "bytes": 0}]
            thresholds = {"to_device": rows, "to_host": rows, "link_ctas": ctas}
            self._by_ctas[ctas] = self.with_thresholds(f"ctas-{ctas}", thresholds)
        return self._by_ctas[ctas]

    def close(self) -> None:
        """Close all engines."""
        for engine in (self.default, self.calibrated, *self._by_ctas.values()):
            engine.close()
        self._folder.cleanup()


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """One of the compared ways to copy between host and device."""

    name: str
    engine: TransferEngine
    method: Method

    def note(self, timing: Timing) -> str:
        """Return the method that the planner chose, or "" if the caller chose the method."""
        return f"by {timing.method}" if self.method == "auto" else ""


def ways(session: Session, engines: Engines, ctas: Sequence[int]) -> list[Way]:
    """Return the ways to copy between host and device.

    They are single driver calls, staging, the driver's batch call, kernels, and the planner's choices.
    """
    found = [Way("staged", engines.default, "staged"), Way("memcpy", engines.default, "memcpy")]
    if session.driver.has_batch:
        found.append(Way("batch", engines.default, "batch"))
    found += [Way(f"kernel, {count} thread blocks", engines.with_ctas(count), "kernel") for count in ctas]
    return [*found, Way("auto", engines.default, "auto"), Way("auto, calibrated", engines.calibrated, "auto")]


class Ground:
    """A store on the device, a pinned host pool that is twice as large, and scattered mappings between them.

    The store and the pool contain random bytes.
    """

    def __init__(self, session: Session, kib: int, num_blocks: int, regions: int) -> None:
        piece = kib << 10
        self._session = session
        self._memory = DeviceMemory(session.driver, regions * num_blocks * piece)
        session.driver.fill(self._memory.address, self._memory.nbytes, TILE)
        self._device = planes(self._memory, piece, num_blocks, regions, session.device)
        self._host = BlockStore.host(2 * num_blocks, self._device, pinned=True)
        for first in (0, num_blocks):
            pairs = [(block, first + block) for block in range(num_blocks)]
            session.finish(session.engine.submit(self._device, self._host, pairs, after=None))
        numbers = rng((kib, num_blocks))
        # Use only half of the pool, so that few pairs of blocks are adjacent in both stores.
        out, back = (
            list(
                zip(
                    numbers.sample(range(num_blocks), num_blocks),
                    numbers.sample(range(2 * num_blocks), num_blocks),
                    strict=True,
                )
            )
            for _ in range(2)
        )
        self._pairs = {TO_HOST: out, TO_DEVICE: [(host, device) for device, host in back]}
        self._mappings = {direction: as_mapping(pairs) for direction, pairs in self._pairs.items()}

    @classmethod
    def of_payload(cls, session: Session, kib: int) -> Ground:
        """Create a store of many layers. Its number of blocks follows from ``payload``, its size in bytes."""
        regions = session.effort.regions
        return cls(session, kib, max(2, session.effort.payload // ((kib << 10) * regions)), regions)

    def submit(self, way: Way, direction: Direction) -> Transfer:
        """Start a copy of all blocks of the device's store."""
        src, dst = (self._device, self._host) if direction == TO_HOST else (self._host, self._device)
        return way.engine.submit(src, dst, self._mappings[direction], after=None, method=way.method)

    def timed(self, way: Way, direction: Direction, repetitions: int) -> Timing:
        """Measure a copy, and compare some of the blocks that it wrote."""
        timing = timed(self._session, lambda: self.submit(way, direction), repetitions)
        self.look(direction)
        return timing

    def look(self, direction: Direction) -> None:
        """Compare some of the blocks that the last copy has written."""
        for src, dst in self._pairs[direction][:_LOOKED_AT]:
            block, of_host = (src, dst) if direction == TO_HOST else (dst, src)
            take = self._session.driver.take
            pieces = [take(base + block * stride, nbytes) for base, stride, nbytes in self._device.regions]
            expect(
                self._host.read_block(of_host) == b"".join(pieces),
                f"{direction}: block {of_host} has other bytes",
            )
