"""Benches that take torch: its own indexing, and matrix products beside which blocks are copied."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from .measure import ON_DEVICE, TO_DEVICE, TO_HOST, Ground, ways
from .report import Figure
from .session import KIB, Skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from .measure import Direction, Engines, Rates, Way
    from .session import Session

BESIDE = "Beside a model"
_CTAS = (4, 16)


def index_copy(session: Session, rates: Rates, table: str, kib: int, ids: list[list[int]]) -> None:
    """Copies blocks on the device by torch's indexing, if torch and memory are there."""
    nbytes = session.effort.regions * len(ids[0]) * kib * KIB
    if session.torch is None or session.driver.free_memory < 5 * nbytes:
        return
    seconds = _index_copy_seconds(session, kib, ids)
    session.torch.cuda.empty_cache()
    rate = 2 * nbytes / seconds / 1e9
    what = f"{kib} KiB, torch index_copy_ of index_select"
    session.figure(Figure(table, what, rate, rates.share(rate, ON_DEVICE), 1e6 * seconds))


def _index_copy_seconds(session: Session, kib: int, ids: list[list[int]]) -> float:
    torch = session.torch
    shape = (session.effort.regions, len(ids[0]), kib * KIB // 8)
    src = torch.randint(0, 1 << 60, shape, dtype=torch.int64, device=session.device)
    dst = torch.zeros_like(src)
    source, target = (torch.tensor(one, device=session.device) for one in ids)
    stream = torch.cuda.current_stream(session.device).cuda_stream

    def work() -> None:
        dst.index_copy_(1, target, src.index_select(1, source))

    work()
    return statistics.median(session.driver.seconds(work, stream) for _ in range(session.effort.repetitions))


class _Model:
    """Matrix products that keep the device busy."""

    def __init__(self, session: Session) -> None:
        self._torch = torch = session.torch
        shape = (session.effort.matmul, session.effort.matmul)
        self._factors = [torch.randn(shape, dtype=torch.bfloat16, device=session.device) for _ in range(2)]
        self._stream = torch.cuda.Stream(session.device)
        self._stream.wait_stream(torch.cuda.current_stream(session.device))
        self.run(3, lambda: None)

    def run(self, count: int, beside: Callable[[], None]) -> float:
        """Seconds of a product, while something else is done again and again."""
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self._torch.cuda.stream(self._stream):
            start.record()
            for _ in range(count):
                self._torch.matmul(*self._factors)
            end.record()
        while not end.query():
            beside()
        return float(start.elapsed_time(end)) / 1e3 / count


class _Mover:
    """Copies one after the other, and counts their bytes."""

    def __init__(self, ground: Ground, way: Way, direction: Direction) -> None:
        self._ground, self._way, self._direction = ground, way, direction
        self.moved = 0

    def __call__(self) -> None:
        transfer = self._ground.submit(self._way, self._direction)
        transfer.wait(60)
        self.moved += transfer.nbytes


def _alone(session: Session, model: _Model, count: int, what: str) -> float:
    seconds = statistics.median(model.run(count, lambda: None) for _ in range(3))
    session.figure(Figure(BESIDE, what, micros=1e6 * seconds))
    return seconds


def beside(session: Session, engines: Engines) -> None:
    """What copies cost a model that runs at the same time, and what it costs them."""
    with session.bench(BESIDE):
        if session.torch is None:
            raise Skip("torch does not use this device here")
        count = 100 if session.quick else 300
        model = _Model(session)
        alone = _alone(session, model, count, "a matrix product alone")
        ground = Ground.of_payload(session, 8)
        for direction in (TO_HOST, TO_DEVICE):
            for way in ways(session, engines, _CTAS, memcpy=False):
                mover = _Mover(ground, way, direction)
                mover()
                mover.moved = 0
                each = model.run(count, mover)
                rate = mover.moved / (each * count) / 1e9
                slower = 100 * (each / alone - 1)
                note = f"a product takes {slower:+.1f} %, {slower / rate if rate else 0.0:.2f} % per GB/s"
                session.figure(Figure(BESIDE, f"{direction}, 8 KiB, {way.name}", rate, None, 1e6 * each, None, note))
        _alone(session, model, count, "a matrix product alone, at the end")
