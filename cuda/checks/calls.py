"""What calls cost: one block's copy, torch's ops, and page-locking."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from kvpool.transfer import BlockStore

from .mappings import DeviceMapping
from .measure import as_mapping, planes
from .memory import DeviceMemory
from .offsets import host_has
from .report import Figure
from .session import GIB, KIB, MIB, Skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from .session import Session

CALLS = "Calls (us each, the host's time)"
PINNING = "Page-locking"
#: Calls one behind the other before the stream is waited for: few, and as many as a stream takes without a wait.
_FEW, _MANY = 50, 500


def _each(session: Session, stream: int, call: Callable[[], object], queued: int) -> tuple[float, float]:
    """Seconds of a call, for the host and on the stream."""
    call()
    session.driver.synchronize(stream)
    took = on_stream = 0.0
    done = 0
    while done < session.effort.calls:
        count = min(queued, session.effort.calls - done)

        def some(count: int = count) -> None:
            nonlocal took
            start = time.perf_counter()
            for _ in range(count):
                call()
            took += time.perf_counter() - start

        on_stream += session.driver.seconds(some, stream)
        session.engine.poll()
        done += count
    return took / done, on_stream / done


def _figure(session: Session, what: str, stream: int, call: Callable[[], object], queued: int = _FEW) -> None:
    host, device = _each(session, stream, call, queued)
    session.figure(Figure(CALLS, what, micros=1e6 * device, submit_micros=1e6 * host))


def _engine_calls(session: Session, stream: int) -> None:
    engine, regions = session.engine, session.effort.regions
    memory = DeviceMemory(session.driver, 1024 * regions * KIB)
    store = planes(memory, KIB, 1024, regions, session.device)
    for count in (1, 480):
        pairs = as_mapping([(block, 512 + block) for block in range(count)])
        what = f"copy of {count} blocks of {regions} KiB on the device"
        _figure(session, what, stream, functools.partial(engine.copy, store, store, pairs, stream=stream))
    if session.int64 is not None:
        mapped = DeviceMapping(session, [(0, 1)])
        what = f"copy of 1 block of {regions} KiB, mapping on the device"
        _figure(session, what, stream, lambda: engine.copy(store, store, mapped, stream=stream))
    one = as_mapping([(0, 1)])
    what = f"copy of 1 block of {regions} KiB, {_MANY} calls under way"
    _figure(session, what, stream, lambda: engine.copy(store, store, one, stream=stream), _MANY)
    _figure(session, "submit of 1 block on the device", stream, lambda: engine.submit(store, store, one, after=stream))
    host = BlockStore.host(16, store, pinned=True)
    _figure(session, "submit of 1 block to the host", stream, lambda: engine.submit(store, host, one, after=stream))


def _op_calls(session: Session) -> None:
    """The ops of torch, from Python to the stream."""
    torch = session.torch
    if torch is None:
        return
    import kvpool.transfer.ops as ops

    layers = session.effort.regions // 2
    src, dst = (
        [torch.zeros(2, 64, 4096, dtype=torch.uint8, device=session.device) for _ in range(layers)] for _ in range(2)
    )
    stores = [BlockStore.from_tensors(tensors, block_dim=1) for tensors in (src, dst)]
    mapping = torch.tensor([[0, 1], [2, 3]])
    stream = torch.cuda.current_stream(session.device).cuda_stream
    handles = [store.handle for store in stores]
    _figure(session, f"copy_blocks, two lists of {layers}", stream, lambda: ops.copy_blocks(src, dst, mapping, 1))
    _figure(session, "copy_blocks_by_handle", stream, lambda: ops.copy_blocks_by_handle(*handles, mapping))
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        _figure(session, "torch: the current stream's handle", stream, lambda: raw(session.ordinal))


def _pinning(session: Session) -> None:
    with session.bench(PINNING):
        nbytes = session.effort.pinned
        while nbytes > MIB and not host_has(nbytes):
            nbytes //= 2
        if session.clock.left < 0.5 * nbytes / GIB:
            raise Skip(f"{nbytes / GIB:.0f} GiB might take longer than the time that is left")
        like = planes(DeviceMemory(session.driver, MIB), MIB, 1, 1, session.device)
        start = time.perf_counter()
        pool = BlockStore.host(nbytes // MIB, like, pinned=True)
        made = time.perf_counter() - start
        start = time.perf_counter()
        del pool
        given_back = time.perf_counter() - start
        for what, seconds in (("pinned pool", made), ("its end", given_back)):
            figure = Figure(PINNING, f"{what}, {nbytes / GIB:.3g} GiB", nbytes / seconds / 1e9, micros=1e6 * seconds)
            session.figure(figure)


def run(session: Session) -> None:
    """Runs the benches."""
    with session.bench(CALLS):
        with session.stream() as stream:
            _engine_calls(session, stream)
        _op_calls(session)
    _pinning(session)
