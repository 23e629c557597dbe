"""CUDA graphs: what can be captured is replayed, and what cannot is refused without harm to the capture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvpool.errors import CaptureError
from kvpool.transfer import BlockStore, TransferEngine

from .mappings import DeviceMapping
from .memory import DeviceMemory, LaidOut, Pool, random_layout, random_pairs, random_pieces
from .session import Skip, expect, expect_refused, rng

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from .memory import Blocks
    from .session import Method, Session

_REPLAYS = 3
_CAPTURED: tuple[Method, ...] = ("auto", "kernel", "memcpy")


def _stores(session: Session, numbers: random.Random) -> tuple[LaidOut, LaidOut, Pool]:
    """Two stores on the device and a pinned pool, each copied once: tables are uploaded before a capture."""
    pieces = random_pieces(numbers, session.effort.arena // 4)
    on_device = []
    for _ in range(2):
        layout = random_layout(numbers, pieces, session.effort.arena, num_blocks=9)
        on_device.append(LaidOut(DeviceMemory(session.driver, layout.nbytes), layout, "device", session.device))
    first, second = on_device
    pool = Pool(9, first.store, pinned=True)
    for src, dst in ((first, second), (first, pool), (pool, second)):
        src.refill(numbers)
        session.engine.submit(src.store, dst.store, [(0, 0)], after=None, method="kernel").wait()
    return first, second, pool


def _prepare(
    session: Session, ends: tuple[Blocks, Blocks], pairs: Sequence[tuple[int, int]], numbers: random.Random
) -> None:
    """Other bytes in both stores, as a twin's copy is to find them."""
    src, dst = ends
    src.refill(numbers)
    dst.refill(numbers)
    session.twin.copy(src.twin, dst.twin, pairs)


def _kernels(session: Session) -> None:
    with session.check("kernel copies, pairs by value"), session.stream() as stream:
        numbers = rng("graphs")
        first, second, pool = _stores(session, numbers)
        for src, dst in ((first, second), (first, pool), (pool, second)):
            for method in _CAPTURED:
                pairs = random_pairs(numbers, range(9), range(9))
                with session.driver.capture(stream) as graphs:
                    session.engine.copy(src.store, dst.store, pairs, stream=stream, method=method)
                for _ in range(_REPLAYS):
                    _prepare(session, (src, dst), pairs, numbers)
                    graphs[0].launch(stream)
                    session.driver.synchronize(stream)
                    dst.check()
                graphs[0].close()


def _fixed_n(session: Session) -> None:
    with session.check("a mapping on the device: fixed n, -1 for none"), session.stream() as stream:
        if session.int64 is None:
            raise Skip("such a mapping is an int64 tensor of torch's, and torch is not there")
        numbers = rng("fixed n")
        first, second, _ = _stores(session, numbers)
        rows = 16
        mapping = DeviceMapping(session, [(-1, -1)] * rows)
        with session.driver.capture(stream) as graphs:
            session.engine.copy(first.store, second.store, mapping, stream=stream)
        for _ in range(_REPLAYS + 2):
            pairs = random_pairs(numbers, range(9), range(9))
            _prepare(session, (first, second), pairs, numbers)
            mapping.assign([*pairs, *[(-1, -1)] * (rows - len(pairs))])
            graphs[0].launch(stream)
            session.driver.synchronize(stream)
            second.check()
        graphs[0].close()
        session.engine.poll()


def _refusals(session: Session) -> None:
    with session.check("batch, staged, pageable and submit are refused"), session.stream() as stream:
        numbers = rng("refusals")
        first, second, pool = _stores(session, numbers)
        pageable = Pool(9, first.store, pinned=False)
        pairs = random_pairs(numbers, range(9), range(9))
        with session.driver.capture(stream) as graphs:
            session.engine.copy(first.store, second.store, pairs, stream=stream)
            if session.driver.has_batch:
                expect_refused(
                    CaptureError,
                    "batch",
                    lambda: session.engine.copy(first.store, pool.store, pairs, stream=stream, method="batch"),
                )
            expect_refused(
                CaptureError,
                "staged",
                lambda: session.engine.copy(first.store, pool.store, pairs, stream=stream, method="staged"),
            )
            expect_refused(
                CaptureError,
                "a pageable store",
                lambda: session.engine.copy(first.store, pageable.store, pairs, stream=stream),
            )
            expect_refused(
                CaptureError, "submit", lambda: session.engine.submit(first.store, pool.store, pairs, after=stream)
            )
        _prepare(session, (first, second), pairs, numbers)
        graphs[0].launch(stream)
        session.driver.synchronize(stream)
        second.check()
        graphs[0].close()


def _beside(session: Session) -> None:
    """An engine makes its buffers, copies, and is asked for what has ended, all while something else is captured."""
    with session.check("other transfers leave a capture whole"), session.stream() as stream:
        numbers = rng("beside")
        first, second, pool = _stores(session, numbers)
        pageable = Pool(9, first.store, pinned=False)
        pairs = random_pairs(numbers, range(9), range(9))
        with TransferEngine(session.device) as engine:
            with session.driver.capture(stream) as graphs:
                session.engine.copy(first.store, second.store, pairs, stream=stream)
                made = BlockStore.host(9, first.store, pinned=True)
                for host in (pool.store, pageable.store, made):
                    for src, dst in ((first.store, host), (host, second.store)):
                        engine.submit(src, dst, [(1, 1)], after=None)
                        engine.submit(src, dst, [(1, 1)], after=None, method="memcpy").wait(60)
                while engine.in_flight:
                    engine.poll()
            expect(made.read_block(1) == first.twin.read_block(1), "a copy beside the capture has gone wrong")
        _prepare(session, (first, second), pairs, numbers)
        graphs[0].launch(stream)
        session.driver.synchronize(stream)
        second.check()
        graphs[0].close()


def _torch_graph(session: Session) -> None:
    with session.check("torch.cuda.graph and torch.ops.kvpool"):
        if session.torch is None:
            raise Skip("torch does not use this device here")
        import kvpool.transfer.ops  # noqa: F401  # registers the ops

        torch, device = session.torch, session.device
        src = [torch.randint(0, 256, (2, 9, 4096), dtype=torch.uint8, device=device) for _ in range(4)]
        dst = [torch.zeros_like(one) for one in src]
        mapping = torch.full((16, 2), -1, dtype=torch.int64, device=device)
        torch.ops.kvpool.copy_blocks(src, dst, mapping, 1)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.ops.kvpool.copy_blocks(src, dst, mapping, 1)
        numbers = rng("torch graph")
        for _ in range(_REPLAYS):
            pairs = random_pairs(numbers, range(9), range(9))
            wanted = [one.random_(0, 256).clone() for one in dst]
            for one, source in zip(wanted, src, strict=True):
                source.random_(0, 256)
                for block, target in pairs:
                    one[:, target] = source[:, block]
            mapping.fill_(-1)
            mapping[: len(pairs)] = torch.tensor(pairs, device=device)
            graph.replay()
            same = all(torch.equal(left, right) for left, right in zip(dst, wanted, strict=True))
            expect(same, "a replay has copied other bytes")


def check(session: Session) -> None:
    """Runs the section."""
    _kernels(session)
    _fixed_n(session)
    _refusals(session)
    _beside(session)
    _torch_graph(session)
