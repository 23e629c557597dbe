"""Compares copies on the GPU with the CPU twin, a copy engine that makes the same copies on the CPU.

Every method copies in every direction, between blocks with random layouts.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Literal

from kvpool.errors import BlockIndexError, InvalidArgumentError

from . import offsets, tensors
from .mappings import DeviceMapping
from .memory import DeviceMemory, HostMemory, LaidOut, Pool, random_layout, random_pairs, random_pieces
from .session import METHODS, CheckFailedError, Skip, expect, rng

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from kvpool.transfer import BlockStore

    from .memory import Blocks
    from .session import Method, Session

    Way = Literal["submit", "copy"]

_WAYS: tuple[Way, ...] = ("submit", "copy")


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    """One copy between two stores, and the method to use for it."""

    src: Blocks
    dst: Blocks
    pairs: list[tuple[int, int]]
    way: Way
    method: Method
    regions: tuple[int, int] | None = None

    def __str__(self) -> str:
        parts = "" if self.regions is None else f", regions {self.regions}"
        return (
            f"{self.way} by {self.method} of {len(self.pairs)} blocks, "
            f"{self.src.name} to {self.dst.name}{parts}"
        )


def why_refused(copy: Copy, *, has_batch: bool) -> str:
    """Return why a method does not support a copy, or "" if it does."""
    ends = (copy.src.store, copy.dst.store)
    host = next((store for store in ends if store.device == "cpu"), None)
    pinned = host is None or host.pinned
    if copy.method in ("kernel", "batch") and not pinned:
        return "the host's memory is pageable"
    if copy.method == "batch" and not has_batch:
        return "the driver is older than 12.8"
    if copy.method == "staged" and host is None:
        return "nothing crosses the link"
    if copy.method == "staged" and pinned and host is not None and not host.packed:
        return "the host's blocks are scattered"
    if copy.method == "staged" and not pinned and copy.way == "copy":
        return "pageable memory is staged by submit only"
    return ""


def run(session: Session, copy: Copy, stream: int) -> None:
    """Make a copy on the device, and wait until it has ended."""
    if copy.way == "submit":
        transfer = session.engine.submit(
            copy.src.store, copy.dst.store, copy.pairs, after=stream, regions=copy.regions, method=copy.method
        )
        session.finish(transfer)
    else:
        session.engine.copy(copy.src.store, copy.dst.store, copy.pairs, stream=stream, method=copy.method)
        session.driver.synchronize(stream)


def check_copy(session: Session, copy: Copy, stream: int, numbers: random.Random) -> None:
    """Make a copy on the device, make the same copy with the CPU twin, and compare all bytes."""
    copy.dst.refill(numbers)
    reason = why_refused(copy, has_batch=session.driver.has_batch)
    try:
        run(session, copy, stream)
    except InvalidArgumentError:
        if not reason:
            raise
    else:
        expect(not reason, f"{copy} was not refused: {reason}")
        session.twin.submit(copy.src.twin, copy.dst.twin, copy.pairs, regions=copy.regions).wait()
    try:
        copy.dst.check()
    except CheckFailedError as error:
        raise CheckFailedError(f"{copy}: {error}") from None


def _ends(session: Session, numbers: random.Random) -> tuple[list[LaidOut], list[Blocks]]:
    """Return two stores on the device and one host store of each kind, all with blocks of the same pieces."""
    limit = session.effort.arena
    pieces = random_pieces(numbers, limit // 2)
    on_device = []
    for _ in range(2):
        layout = random_layout(numbers, pieces, limit)
        memory = DeviceMemory(session.driver, layout.nbytes)
        on_device.append(LaidOut(memory, layout, "device", session.device))
    hosts: list[Blocks] = []
    for kind, driver, shape in (
        ("pinned", session.driver, ""),
        ("pinned", session.driver, "packed"),
        ("pageable", None, ""),
    ):
        layout = random_layout(numbers, pieces, limit, shape)
        hosts.append(LaidOut(HostMemory(layout.nbytes, driver), layout, kind))
    count = on_device[0].store.num_blocks
    return on_device, [*hosts, *(Pool(count, on_device[0].store, pinned=pinned) for pinned in (True, False))]


def _random_regions(numbers: random.Random, store: BlockStore) -> tuple[int, int] | None:
    if store.num_regions < 2 or numbers.random() < 0.5:
        return None
    first = numbers.randrange(store.num_regions)
    return first, numbers.randrange(first + 1, store.num_regions + 1)


def copies(numbers: random.Random, on_device: list[LaidOut], hosts: list[Blocks]) -> Iterator[Copy]:
    """Yield copies between all kinds of stores, with every method and every way of passing the mapping."""
    first, second = on_device
    ends: list[tuple[Blocks, Blocks]] = [(first, second)]
    ends += [(first, host) for host in hosts] + [(host, second) for host in hosts]
    for src, dst in ends:
        for way in _WAYS:
            for method in METHODS:
                pairs = random_pairs(numbers, range(src.store.num_blocks), range(dst.store.num_blocks))
                regions = _random_regions(numbers, src.store) if way == "submit" else None
                yield Copy(src, dst, pairs, way, method, regions)


def _trial(session: Session, stream: int, seed: int) -> int:
    """Run all methods on blocks with one random layout. Return the number of copies."""
    numbers = rng(("layouts", seed))
    on_device, hosts = _ends(session, numbers)
    for one in (*on_device, *hosts):
        one.refill(numbers)
    done = 0
    for copy in copies(numbers, on_device, hosts):
        check_copy(session, copy, stream, numbers)
        done += 1
    for one in (*on_device, *hosts):
        one.check()
    return done


def _layouts(session: Session) -> None:
    with session.check("layouts, elements, mappings, methods") as notes, session.stream() as stream:
        end = time.monotonic() + min(session.effort.trial_seconds, session.clock.left)
        done = trials = 0
        try:
            while trials < session.effort.trials and (time.monotonic() < end or trials == 0):
                done += _trial(session, stream, trials)
                trials += 1
        finally:
            notes.append(f"{done} copies over {trials} random layouts, all bytes compared")


def _within_one_store(session: Session) -> None:
    with session.check("within one store"), session.stream() as stream:
        numbers = rng("one store")
        for _ in range(min(session.effort.trials, 20)):
            pieces = random_pieces(numbers, session.effort.arena // 4)
            layout = random_layout(numbers, pieces, session.effort.arena)
            blocks = LaidOut(DeviceMemory(session.driver, layout.nbytes), layout, "device", session.device)
            ids = numbers.sample(range(layout.num_blocks), layout.num_blocks)
            half = layout.num_blocks // 2
            for method in METHODS:
                pairs = random_pairs(numbers, ids[:half], ids[half:])
                for way in _WAYS:
                    check_copy(session, Copy(blocks, blocks, pairs, way, method), stream, numbers)


def _many_pairs(session: Session) -> None:
    with session.check("mappings of more pairs than a launch holds"), session.stream() as stream:
        numbers = rng("many pairs")
        pieces = random_pieces(numbers, 64)
        layouts = [random_layout(numbers, pieces, 0, num_blocks=count) for count in (1100, 1300)]
        src, dst = (
            LaidOut(DeviceMemory(session.driver, layout.nbytes), layout, "device", session.device)
            for layout in layouts
        )
        pool = Pool(1200, src.store, pinned=True)
        for one in (src, pool):
            one.refill(numbers)
        ends: list[tuple[Blocks, Blocks]] = [(src, dst), (src, pool), (pool, dst)]
        for source, target in ends:
            for count in (479, 480, 481, 960, 1100):
                ids = (
                    numbers.sample(range(store.num_blocks), count) for store in (source.store, target.store)
                )
                pairs = list(zip(*ids, strict=True))
                for method in METHODS:
                    check_copy(session, Copy(source, target, pairs, "submit", method), stream, numbers)


def _mapped(session: Session, stream: int, numbers: random.Random, rows: int) -> None:
    """Check a mapping in device memory that has unset pairs, and pairs with ids that are out of range.

    Pairs in range must be copied, and no other bytes may be written.
    """
    pieces = random_pieces(numbers, 64)
    src, dst = (
        LaidOut(DeviceMemory(session.driver, layout.nbytes), layout, "device", session.device)
        for layout in (random_layout(numbers, pieces, 0, num_blocks=rows + extra) for extra in (7, 100))
    )
    pairs = list(
        zip(numbers.sample(range(rows + 7), rows), numbers.sample(range(rows + 100), rows), strict=True)
    )
    wrong = [
        (src.store.num_blocks, 0),
        (0, dst.store.num_blocks),
        (-2, 0),
        (0, -(1 << 40)),
        (1 << 40, 1 << 62),
    ]
    for bad in ([], *([one] for one in wrong), wrong):
        holes = [(-1, 0), (0, -1), (-1, -1), (-1, 1 << 40)] * max(1, rows // 8)
        every = [*pairs, *holes, *bad]
        numbers.shuffle(every)
        for one in (src, dst):
            one.refill(numbers)
        mapping = DeviceMapping(session, every)
        session.engine.copy(src.store, dst.store, mapping, stream=stream)
        session.driver.synchronize(stream)
        session.twin.copy(src.twin, dst.twin, pairs)
        dst.check()
        src.check()
        told = _polls(session)
        expect(told == [bool(bad), False], f"of {len(bad)} ids out of range, polls told {told}")


def _polls(session: Session) -> list[bool]:
    """Poll twice. Return for each poll whether it reports ids that are out of range."""
    told = []
    for _ in range(2):
        try:
            session.engine.poll()
            told.append(False)
        except BlockIndexError:
            told.append(True)
    return told


def _mappings_on_the_device(session: Session) -> None:
    with session.check("mappings on the device: -1, ids out of range") as notes, session.stream() as stream:
        if session.int64 is None:
            raise Skip("such a mapping is an int64 tensor of torch's, and torch is not there")
        numbers = rng("mapped")
        for rows in (1, 8, 480, 481, 1000):
            _mapped(session, stream, numbers, rows)
        _mapped(session, stream, numbers, 0)
        notes.append("ids out of range are told by one poll, and nothing is written for them")


def check(session: Session) -> None:
    """Run the section."""
    _layouts(session)
    _within_one_store(session)
    _many_pairs(session)
    _mappings_on_the_device(session)
    offsets.check(session)
    tensors.check(session)
