"""Tests of the fake CUDA driver itself: the order in which it runs work, calls that must wait for work,
and failures that a test requests.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import pytest

from tests.transfer.fake_cuda.helpers import (
    ANY_ORDER,
    DURING_CALL,
    INVALID_VALUE,
    NOT_READY,
    STREAM_ORDER,
    Store,
    copy_params,
    pattern,
    read,
    take_violation,
)

if TYPE_CHECKING:
    from tests.transfer.fake_cuda.driver import Driver


@pytest.fixture
def lazy(cuda: Driver) -> Driver:
    cuda.set(lazy=1)
    return cuda


# --- Order


def test_lazily_nothing_runs_before_someone_waits(lazy: Driver) -> None:
    src, dst, stream, event = Store(lazy, 2, 64), Store(lazy, 2, 64, seed=2), lazy.stream(), lazy.event()
    old = dst.block(0)
    params = copy_params(lazy, src, dst, [(1, 0)])
    assert lazy.launch(16, params, stream) == 0
    params.pairs[0].src = 0  # the call has its own copy
    assert lazy.call("cuEventRecord", event, stream) == 0
    assert lazy.launch(16, params, stream) == 0
    assert lazy.count("queued") == 3
    assert lazy.call("cuEventQuery", event) == lazy.call("cuStreamQuery", stream) == NOT_READY
    assert dst.block(0) == old
    assert lazy.call("cuEventSynchronize", event) == lazy.call("cuEventQuery", event) == 0
    assert dst.block(0) == src.block(1)  # the work after the event still waits
    assert lazy.call("cuStreamSynchronize", stream) == lazy.call("cuStreamQuery", stream) == 0
    assert dst.block(0) == src.block(0)
    assert lazy.count("synchronizations") == 2


def test_a_wait_orders_streams_and_a_missing_one_shows(lazy: Driver) -> None:
    for waits in (True, False):
        a, b, c = (Store(lazy, 1, 64, seed) for seed in range(3))
        first, second, event = lazy.stream(), lazy.stream(), lazy.event()
        start, stale = a.block(0), b.block(0)
        assert lazy.launch(16, copy_params(lazy, a, b, [(0, 0)]), first) == 0
        assert lazy.call("cuEventRecord", event, first) == 0
        if waits:
            assert lazy.call("cuStreamWaitEvent", second, event, 0) == 0
        assert lazy.launch(16, copy_params(lazy, b, c, [(0, 0)]), second) == 0
        assert (
            lazy.call("cuEventRecord", event, second) == 0
        )  # recorded again: the wait was for the first record
        assert lazy.call("cuEventSynchronize", event) == 0
        assert c.block(0) == (start if waits else stale)
        assert lazy.count("queued") == (0 if waits else 2)
        lazy.run_all()
    assert lazy.count("waits") == 1


def test_the_legacy_stream_waits_for_blocking_streams_only(lazy: Driver) -> None:
    data, host = pattern(64), ctypes.create_string_buffer(64)
    for blocking in (True, False):
        device, stream = lazy.put(bytes(64)), lazy.stream(blocking=blocking)
        pinned = lazy.host_alloc(64)
        ctypes.memmove(pinned, data, 64)
        assert lazy.call("cuMemcpyAsync", device, pinned, 64, stream) == 0
        assert lazy.call("cuMemcpyDtoH_v2", host, device, 64) == 0
        assert (host.raw == data) is blocking
    assert lazy.call("cuStreamSynchronize", stream) == 0
    assert lazy.call("cuMemsetD8Async", device, 7, 64, None) == 0
    assert lazy.call("cuMemcpyAsync", pinned, device, 64, lazy.stream(blocking=True)) == 0
    assert lazy.call("cuMemsetD8Async", lazy.alloc(64), 7, 64, lazy.stream()) == 0
    assert lazy.run_pick(0) == 2  # on the legacy stream, and on the last one, which does not wait for it
    lazy.run_all()
    assert read(pinned, 64) == b"\7" * 64


def test_any_legal_order_can_be_chosen(lazy: Driver) -> None:
    seen = set()
    for choice in (0, 1):
        target, pinned = lazy.put(bytes(4)), lazy.host_alloc(8)
        ctypes.memmove(pinned, b"aaaabbbb", 8)
        for offset in (0, 4):
            assert lazy.call("cuMemcpyAsync", target, pinned + offset, 4, lazy.stream()) == 0
        assert lazy.run_pick(choice) == 2
        assert lazy.run_one()
        assert not lazy.run_one()
        seen.add(read(target, 4))
    assert seen == {b"aaaa", b"bbbb"}


def test_queries_can_be_answered_late(cuda: Driver) -> None:
    cuda.set(event_queries=2)
    stream, event = cuda.stream(), cuda.event()
    assert cuda.call("cuEventQuery", event) == 0  # never recorded
    assert cuda.call("cuEventRecord", event, stream) == 0
    assert [cuda.call("cuEventQuery", event) for _ in range(4)] == [NOT_READY, NOT_READY, 0, 0]
    assert cuda.call("cuEventRecord", event, stream) == cuda.call("cuStreamSynchronize", stream) == 0
    assert cuda.call("cuEventQuery", event) == 0
    cuda.set(lazy=1)
    cuda.set(event_queries=1)
    assert cuda.call("cuMemsetD8Async", cuda.alloc(64), 1, 64, stream) == 0
    assert cuda.call("cuEventRecord", event, stream) == 0
    assert [cuda.call("cuEventQuery", event) for _ in range(3)] == [
        NOT_READY,
        NOT_READY,
        0,
    ]  # each runs one operation


# --- Batches


def test_unordered_sources_are_read_at_the_call(lazy: Driver) -> None:
    for order, expected in ((STREAM_ORDER, b"new"), (DURING_CALL, b"old"), (ANY_ORDER, b"old")):
        source, target, pinned = lazy.put(b"old"), lazy.put(b"...."), lazy.host_alloc(64)
        ctypes.memmove(pinned, b"new", 3)
        stream = lazy.stream()
        assert lazy.call("cuMemcpyAsync", source, pinned, 3, stream) == 0
        assert lazy.batch([(target, source, 3)], stream, orders=(order,)) == (0, ctypes.c_size_t(-1).value)
        assert lazy.call("cuStreamSynchronize", stream) == 0
        assert read(target, 3) == expected
        if order == ANY_ORDER:
            assert "unordered copy changed" in take_violation(lazy)  # it may have been read at any moment
        else:
            assert lazy.violation == ""
        lazy.set(lazy=1)


def test_attributes_hold_from_their_first_copy_on(lazy: Driver) -> None:
    source, target, stream = lazy.host_alloc(4), lazy.alloc(64), lazy.stream()
    ctypes.memmove(source, b"abcd", 4)
    copies = [(target + index, source + index, 1) for index in range(4)]
    orders = (DURING_CALL, STREAM_ORDER)
    assert lazy.batch(copies, stream, orders=orders, firsts=(0, 2))[0] == 0
    ctypes.memmove(source, b"ABCD", 4)
    lazy.run_all()
    assert read(target, 4) == b"abCD"
    assert (lazy.count("batches"), lazy.count("descriptors"), lazy.count("bytes")) == (1, 4, 4)
    wrong: list[tuple[list[int], list[int]]] = [
        ([1, 1], [0, 0]),
        ([1], [1]),
        ([1, 1], [0, 4]),
        ([0], [0]),
        ([4], [0]),
    ]
    for wrong_orders, firsts in wrong:
        assert lazy.batch(copies, stream, orders=wrong_orders, firsts=firsts)[0] == INVALID_VALUE
    assert lazy.batch(copies[:1], stream, orders=(1, 1), firsts=(0, 1))[0] == INVALID_VALUE
    for legacy in (0, 1):
        assert lazy.batch(copies, legacy)[0] == INVALID_VALUE


@pytest.mark.parametrize("reverse", [0, 1])
def test_dependent_copies_in_one_batch_are_a_violation(cuda: Driver, reverse: int) -> None:
    base, stream = cuda.put(b"abcd"), cuda.stream()
    cuda.set(reverse=reverse)
    assert cuda.batch([(base + 1, base, 1), (base + 2, base + 1, 1)], stream)[0] == 0
    assert read(base, 4) == (b"aabd" if reverse else b"aaad")
    assert "batch writes what it reads" in take_violation(cuda)


# --- Ends


def test_memory_given_back_while_work_waits_is_a_violation(lazy: Driver) -> None:
    buffer = ctypes.create_string_buffer(4096)
    base = ctypes.addressof(buffer)

    def begin() -> int:
        lazy.set(lazy=1)
        stream, device = lazy.stream(), lazy.put(b"data")
        assert lazy.call("cuMemHostRegister_v2", base, 4096, 0) == 0
        lazy.watch(base, 4096)
        assert lazy.call("cuMemcpyAsync", base + 100, device, 4, stream) == 0
        return stream

    begin()
    assert lazy.call("cuMemHostUnregister", base) == 0
    assert "unregistered while work waits" in take_violation(lazy)
    begin()
    lazy.unwatch(base)
    assert "given back while work waits" in take_violation(lazy)
    assert lazy.call("cuStreamDestroy_v2", begin()) == 0
    assert "destroyed while work waits" in take_violation(lazy)
    stream = begin()
    assert lazy.call("cuStreamSynchronize", stream) == lazy.call("cuStreamDestroy_v2", stream) == 0
    assert lazy.call("cuMemHostUnregister", base) == 0
    lazy.unwatch(base)
    assert lazy.violation == ""


def test_kernels_that_wait_touch_their_blocks_tables_and_status(lazy: Driver) -> None:
    src, dst, status = Store(lazy, 4, 64), Store(lazy, 4, 64), lazy.put(bytes(4))
    params = copy_params(lazy, src, dst, [(1, 2)])
    params.status = status
    for address, touched in (
        (src.base + 64, True),
        (src.base, False),
        (dst.base + 128, True),
        (dst.base + 192, False),
        (src.table, True),
        (status, True),
    ):
        lazy.watch(address, 4)
        assert lazy.launch(16, params, lazy.stream()) == 0
        before = lazy.count("violations")
        lazy.unwatch(address)
        assert lazy.count("violations") - before == touched
        lazy.run_all()
    take_violation(lazy)


def test_freeing_device_memory_waits_for_the_device(lazy: Driver) -> None:
    src, dst = Store(lazy, 1, 64), Store(lazy, 1, 64, seed=2)
    expected = src.block(0)
    assert lazy.launch(16, copy_params(lazy, src, dst, [(0, 0)]), lazy.stream()) == 0
    assert lazy.call("cuMemFree_v2", src.base) == 0
    assert dst.block(0) == expected
    assert lazy.count("live_allocs") == 3


# --- Requested failures
