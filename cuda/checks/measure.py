"""What the benches share: timing, engines with thresholds of their own, stores to copy between."""

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

#: Random bytes, of a length that no piece divides: blocks that are filled with it differ.
TILE = rng("tile").randbytes(MIB - 4093)

_LOOKED_AT = 2

#: Seconds of copies before those that count. The first ones on memory that was just made take a tenth longer.
_WARM_UP = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """The medians of some copies."""

    seconds: float
    submit_seconds: float
    nbytes: int
    method: str

    @property
    def rate(self) -> float:
        """GB/s; 0 where the clock has not moved."""
        return self.nbytes / self.seconds / 1e9 if self.seconds > 0 else 0.0

    def figure(
        self, table: str, what: str, share: float | None, *, passes: int = 1, note: str = ""
    ) -> Figure:
        """A row of a table; ``passes`` is 2 where bytes read and bytes written are counted."""
        return Figure(
            table, what, passes * self.rate, share, 1e6 * self.seconds, 1e6 * self.submit_seconds, note
        )


@dataclasses.dataclass(slots=True)
class Rates:
    """What verdicts are made of, in GB/s."""

    #: Of plain copies: to host, to device, and on device, read plus written.
    plain: dict[str, float] = dataclasses.field(default_factory=dict)
    #: Of the kernel on the device, read plus written, by KiB of a piece.
    on_device: dict[int, float] = dataclasses.field(default_factory=dict)
    #: Of swaps, by direction and KiB of a piece, then by the way.
    swaps: dict[tuple[Direction, int], dict[str, float]] = dataclasses.field(default_factory=dict)

    def share(self, rate: float, of: str) -> float | None:
        """Of the plain copy's rate, if that was measured."""
        plain = self.plain.get(of, 0.0)
        return rate / plain if plain else None


def timed(session: Session, submit: Callable[[], Transfer], repetitions: int, limit: float = 2.0) -> Timing:
    """Times a transfer: some to make buffers and warm up, then so often, or for so many seconds."""
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
    """Pairs as int64 of shape [n, 2], which cost the least to hand over."""
    numbers = array("q", [number for pair in pairs for number in pair])
    return memoryview(numbers).cast("B").cast("q", (len(pairs), 2))


def planes(memory: DeviceMemory, piece: int, num_blocks: int, regions: int, device: str) -> BlockStore:
    """A store of equal pieces in planes one behind the other, as layers of keys and values are."""
    plane = num_blocks * piece
    where = [(memory.address + region * plane, piece, piece) for region in range(regions)]
    return BlockStore.from_regions(where, num_blocks, device=device, keep_alive=memory)


class Engines:
    """Engines that differ in what their planners go by."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._folder = tempfile.TemporaryDirectory()
        #: With the thresholds that are built in.
        self.default = TransferEngine(session.device)
        #: With those that a calibration has found; the default ones until then.
        self.calibrated = self.default
        self._by_ctas: dict[int, TransferEngine] = {}

    def path(self, name: str) -> Path:
        """A file of calibrations."""
        return Path(self._folder.name) / f"{name}.json"

    def calibrate(self) -> dict[str, Any]:
        """Lets one engine measure, and another one load what that has saved; returns the thresholds."""
        path = self.path("calibration")
        with TransferEngine(self._session.device) as engine:
            thresholds: dict[str, Any] = engine.calibrate(path)["thresholds"]
        self.calibrated = TransferEngine(self._session.device, calibration=path)
        return thresholds

    def with_thresholds(self, name: str, thresholds: dict[str, Any]) -> TransferEngine:
        """An engine that goes by these."""
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
        """An engine whose kernels cross the link with so many thread blocks."""
        if ctas not in self._by_ctas:
            rows = [{"descriptors": 0, "bytes": 0}]
            thresholds = {"to_device": rows, "to_host": rows, "link_ctas": ctas}
            self._by_ctas[ctas] = self.with_thresholds(f"ctas-{ctas}", thresholds)
        return self._by_ctas[ctas]

    def close(self) -> None:
        """Ends all of them."""
        for engine in (self.default, self.calibrated, *self._by_ctas.values()):
            engine.close()
        self._folder.cleanup()


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """One of the ways that are compared."""

    name: str
    engine: TransferEngine
    method: Method

    def note(self, timing: Timing) -> str:
        """What the planner has chosen, where it was asked."""
        return f"by {timing.method}" if self.method == "auto" else ""


def ways(session: Session, engines: Engines, ctas: Sequence[int]) -> list[Way]:
    """The ways across the link: the driver's loop, staging, its batch, kernels, and the planner's choices."""
    found = [Way("staged", engines.default, "staged"), Way("memcpy", engines.default, "memcpy")]
    if session.driver.has_batch:
        found.append(Way("batch", engines.default, "batch"))
    found += [Way(f"kernel, {count} thread blocks", engines.with_ctas(count), "kernel") for count in ctas]
    return [*found, Way("auto", engines.default, "auto"), Way("auto, calibrated", engines.calibrated, "auto")]


class Ground:
    """A store on the device and a pinned pool twice as large, both full of random bytes, and scattered
    mappings.
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
        # Half of the pool: few blocks are neighbours in both.
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
        """As many blocks of many layers as make up the payload."""
        regions = session.effort.regions
        return cls(session, kib, max(2, session.effort.payload // ((kib << 10) * regions)), regions)

    def submit(self, way: Way, direction: Direction) -> Transfer:
        """Starts a copy of as many blocks as the device has."""
        src, dst = (self._device, self._host) if direction == TO_HOST else (self._host, self._device)
        return way.engine.submit(src, dst, self._mappings[direction], after=None, method=way.method)

    def timed(self, way: Way, direction: Direction, repetitions: int) -> Timing:
        """Times a copy, and looks at what it has written."""
        timing = timed(self._session, lambda: self.submit(way, direction), repetitions)
        self.look(direction)
        return timing

    def look(self, direction: Direction) -> None:
        """Compares some blocks of the last copy."""
        for src, dst in self._pairs[direction][:_LOOKED_AT]:
            block, of_host = (src, dst) if direction == TO_HOST else (dst, src)
            take = self._session.driver.take
            pieces = [take(base + block * stride, nbytes) for base, stride, nbytes in self._device.regions]
            expect(
                self._host.read_block(of_host) == b"".join(pieces),
                f"{direction}: block {of_host} has other bytes",
            )
