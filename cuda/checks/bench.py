"""Measures the rates of plain copies, of copies on the device, and of copies to and from the host."""

from __future__ import annotations

import functools
import statistics
import time
from typing import TYPE_CHECKING, Any

from .load import clocks
from .measure import (
    ON_DEVICE,
    TILE,
    TO_DEVICE,
    TO_HOST,
    Engines,
    Ground,
    Rates,
    as_mapping,
    planes,
    timed,
    ways,
)
from .memory import DeviceMemory
from .report import Figure
from .session import KIB, MIB, rng

if TYPE_CHECKING:
    from kvpool.transfer import BlockStore

    from .measure import Timing
    from .session import Method, Session

PLAIN = "Plain copies (on the device: read plus written)"
DEVICE = "On the device (read plus written)"
SWAPS = "Swaps"
CALIBRATION = "Calibration"

#: Sizes of a block's pieces in KiB. For swaps, the sizes that the verdicts need come first.
DEVICE_PIECES = (2, 4, 8, 16, 32, 64)
SWAP_PIECES = (8, 16, 32, 64, 2)


def _plain(session: Session, rates: Rates) -> None:
    with session.bench(PLAIN), session.stream() as stream:
        driver, size = session.driver, session.effort.payload
        memory = [DeviceMemory(driver, session.effort.device_payload) for _ in range(2)]
        for one in memory:
            driver.fill(one.address, one.nbytes, TILE)
        there, here = memory[0].address, memory[1].address
        pinned = driver.host_alloc(size)
        plan = [
            (ON_DEVICE, here, there, memory[0].nbytes),
            (TO_HOST, pinned, there, size),
            (TO_DEVICE, here, pinned, size),
        ]
        try:
            for name, dst, src, nbytes in plan:
                copy = functools.partial(driver.copy, dst, src, nbytes, stream)
                seconds = statistics.median(
                    driver.seconds(copy, stream) for _ in range(session.effort.repetitions + 1)
                )
                passes = 2 if name == ON_DEVICE else 1
                rates.plain[name] = passes * nbytes / seconds / 1e9 if seconds else 0.0
                note = f"cuMemcpyAsync of {nbytes // MIB} MiB"
                session.figure(Figure(PLAIN, name, rates.plain[name], micros=1e6 * seconds, note=note))
        finally:
            driver.synchronize(stream)
            driver.host_free(pinned)


def _on_device(session: Session, rates: Rates) -> None:
    with session.bench(DEVICE):
        regions = session.effort.regions
        nbytes = min(session.effort.device_payload, session.driver.free_memory // 8)
        methods: list[Method] = ["kernel", "batch"] if session.driver.has_batch else ["kernel"]
        for kib in DEVICE_PIECES:
            num_blocks = max(2, nbytes // (kib * KIB * regions))
            memory = [DeviceMemory(session.driver, regions * num_blocks * kib * KIB) for _ in range(2)]
            session.driver.fill(memory[0].address, memory[0].nbytes, TILE)
            src, dst = (planes(one, kib * KIB, num_blocks, regions, session.device) for one in memory)
            numbers = rng(("on device", kib))
            ids = [numbers.sample(range(num_blocks), num_blocks) for _ in range(2)]
            for method in methods:
                timing = _timed_on_device(session, src, dst, ids, method)
                rate = 2 * timing.rate
                if method == "kernel":
                    rates.on_device[kib] = rate
                share = rates.share(rate, ON_DEVICE)
                session.figure(timing.figure(DEVICE, f"{kib} KiB, {method}", share, passes=2))


def _timed_on_device(
    session: Session, src: BlockStore, dst: BlockStore, ids: list[list[int]], method: Method
) -> Timing:
    pairs = as_mapping(list(zip(*ids, strict=True)))
    submit = session.engine.submit
    return timed(
        session, lambda: submit(src, dst, pairs, after=None, method=method), session.effort.repetitions
    )


def _calibrate(session: Session, engines: Engines) -> None:
    with session.bench(CALIBRATION):
        start = time.perf_counter()
        if session.dry_run:
            rows = [{"descriptors": 0, "bytes": 0}, {"descriptors": 16, "bytes": 16 * KIB}]
            thresholds: dict[str, Any] = {"to_device": rows, "to_host": rows, "link_ctas": 8}
            engines.calibrated = engines.with_thresholds("calibration", thresholds)
            note = "dry run: made up"
        else:
            thresholds = engines.calibrate()
            note = "calibrate()"
        session.figure(
            Figure(
                CALIBRATION, "finding the thresholds", micros=1e6 * (time.perf_counter() - start), note=note
            )
        )
        for direction in ("to_device", "to_host"):
            parts = (
                f"{row['bytes']} B, from {row['descriptors']} pieces on" for row in thresholds[direction]
            )
            text = "; ".join(parts)
            session.figure(Figure(CALIBRATION, f"{direction}: the copy engine takes pieces from", note=text))
        session.figure(
            Figure(CALIBRATION, "thread blocks of kernels over the link", note=str(thresholds["link_ctas"]))
        )


def _swaps(session: Session, rates: Rates, engines: Engines) -> None:
    with session.bench(SWAPS):
        for kib in SWAP_PIECES:
            ground = Ground.of_payload(session, kib)
            for direction in (TO_HOST, TO_DEVICE):
                reached = rates.swaps.setdefault((direction, kib), {})
                for way in ways(session, engines, session.effort.ctas):
                    timing = ground.timed(way, direction, session.effort.repetitions)
                    reached[way.name] = timing.rate
                    share = rates.share(timing.rate, direction)
                    what = f"{direction}, {kib} KiB, {way.name}"
                    session.figure(timing.figure(SWAPS, what, share, note=way.note(timing)))


def run(session: Session) -> Rates:
    """Run all benchmarks of this section. Return the rates from which the verdicts are computed."""
    rates = Rates()
    session.rates = rates
    engines = Engines(session)
    try:
        _plain(session, rates)
        _on_device(session, rates)
        _calibrate(session, engines)
        _swaps(session, rates, engines)
    finally:
        engines.close()
        session.report.facts["clocks after the benches"] = clocks(session.driver) or "not known"
    return rates
